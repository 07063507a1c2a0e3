// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the major and its minors. Takes minors_lock. */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "state/container.h"
#include "state/minor.h"

/* Minors are allocated cyclically: a minor is reused only after all others, so a copied
 * node that outlives its container does not soon lead to another one. Open files hold a
 * reference to the container, and its minors are removed after the last reference.
 */
#define MINORS (1u << MINORBITS)
static DEFINE_IDR(minors);	/* -> struct minor_entry; minors_lock */
static DEFINE_SPINLOCK(minors_lock);	/* tenants' tasks take it: one that sleeps may be throttled */

struct minor_entry {
	struct ckm_container *ct;
	struct ckm_slot *slot;
	u32 node;
};

static dev_t first_dev;
static struct cdev cdev;

u32 ckm_major(void)
{
	return MAJOR(first_dev);
}

/* The open of a node sets f_op to the cdev's operations, which no other file has. */
bool ckm_is_front(const struct file *file)
{
	return file->f_op == cdev.ops;
}

static int add_minor(struct ckm_container *ct, struct ckm_slot *slot, u32 node, u32 *minor)
{
	struct minor_entry *entry = kmalloc(sizeof(*entry), GFP_KERNEL);
	int ret;

	if (!entry)
		return -ENOMEM;
	*entry = (struct minor_entry){ ct, slot, node };
	idr_preload(GFP_KERNEL);
	spin_lock(&minors_lock);
	ret = idr_alloc_cyclic(&minors, entry, 0, MINORS, GFP_NOWAIT);
	spin_unlock(&minors_lock);
	idr_preload_end();
	if (ret < 0) {
		kfree(entry);
		return ret;
	}
	*minor = ret;
	return 0;
}

static void remove_minor(u32 minor)
{
	struct minor_entry *entry;

	spin_lock(&minors_lock);
	entry = idr_remove(&minors, minor);
	spin_unlock(&minors_lock);
	kfree(entry);
}

struct ckm_container *ckm_container_by_minor(u32 minor, u32 *node, struct ckm_slot **slot)
{
	struct ckm_container *ct = NULL;
	struct minor_entry *entry;

	spin_lock(&minors_lock);
	entry = idr_find(&minors, minor);
	if (entry && !READ_ONCE(entry->ct->dying) && kref_get_unless_zero(&entry->ct->ref)) {
		ct = entry->ct;
		*node = entry->node;
		*slot = entry->slot;
	}
	spin_unlock(&minors_lock);
	return ct;
}

void ckm_minors_remove(struct ckm_container *ct)
{
	u32 slots = ct->slot_count;

	while (slots--)
		remove_minor(ct->slot[slots].minor);
	remove_minor(ct->uvm_minor);
	remove_minor(ct->ctl_minor);
}

int ckm_minors_add(struct ckm_container *ct)
{
	u32 i;
	int ret;

	ret = add_minor(ct, NULL, CGPU_NODE_CTL, &ct->ctl_minor);
	if (ret)
		return ret;
	ret = add_minor(ct, NULL, CGPU_NODE_UVM, &ct->uvm_minor);
	if (ret)
		goto err_ctl;
	for (i = 0; i < ct->slot_count; i++) {
		ret = add_minor(ct, &ct->slot[i], CGPU_NODE_GPU, &ct->slot[i].minor);
		if (ret)
			goto err_slots;
	}
	return 0;

err_slots:
	while (i--)
		remove_minor(ct->slot[i].minor);
	remove_minor(ct->uvm_minor);
err_ctl:
	remove_minor(ct->ctl_minor);
	return ret;
}

int ckm_minors_init(const struct file_operations *fops)
{
	int ret = alloc_chrdev_region(&first_dev, 0, MINORS, "cgpu");

	if (ret)
		return ret;
	cdev_init(&cdev, fops);
	cdev.owner = THIS_MODULE;
	ret = cdev_add(&cdev, first_dev, MINORS);
	if (ret)
		unregister_chrdev_region(first_dev, MINORS);
	return ret;
}

void ckm_minors_exit(void)
{
	cdev_del(&cdev);
	unregister_chrdev_region(first_dev, MINORS);
	idr_destroy(&minors);	/* empty: each container pins the module */
}
