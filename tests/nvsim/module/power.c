// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Suspend by /proc/driver/nvidia/suspend, as nv.c and nv-procfs.c have it: until "resume" is written, calls of
 * processes wait. The simulated GPU itself goes on; a kernel client that calls meanwhile is counted.
 */
#include <linux/atomic.h>
#include <linux/ctype.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "nvsim.h"

enum { IN_HIBERNATE, IN_STANDBY, RUNNING };	/* nv.h: nv_power_state_t */

static DEFINE_MUTEX(state_lock);
static u32 state = RUNNING;			/* state_lock; READ_ONCE by those that wait */
static DECLARE_WAIT_QUEUE_HEAD(awake);
static atomic_t asleep_calls = ATOMIC_INIT(0);

static bool is_running(void)
{
	return READ_ONCE(state) == RUNNING;
}

noinline NV_STATUS nv_set_system_power_state(u32 to, u32 depth)
{
	NV_STATUS st = NV_OK;

	if (to > RUNNING)
		return NV_ERR_INVALID_ARGUMENT;
	mutex_lock(&state_lock);
	if (to != RUNNING && state != RUNNING && to != state)
		st = NV_ERR_INVALID_ARGUMENT;
	else
		WRITE_ONCE(state, to);
	mutex_unlock(&state_lock);
	wake_up_all(&awake);
	return st;
}

int nvsim_power_wait(void)
{
	return wait_event_interruptible(awake, is_running());
}

void nvsim_power_kernel_call(void)
{
	if (!is_running())
		atomic_inc(&asleep_calls);
}

u32 nvsim_power_asleep_calls(void)
{
	return atomic_read(&asleep_calls);
}

static int show_suspend(struct seq_file *s, void *unused)
{
	seq_puts(s, "suspend hibernate resume\n");
	return 0;
}

static int open_suspend(struct inode *inode, struct file *file)
{
	return single_open(file, show_suspend, NULL);
}

static ssize_t write_suspend(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	static const char * const words[] = { "hibernate", "suspend", "resume" };
	char word[12] = {};
	u32 to, i;

	if (len < strlen("resume") || len >= sizeof(word))
		return -EINVAL;
	if (copy_from_user(word, buf, len))
		return -EFAULT;
	for (i = 0; isalpha(word[i]); i++)
		;
	word[i] = 0;
	for (to = 0; to < ARRAY_SIZE(words); to++)
		if (!strcmp(word, words[to]))
			return nv_set_system_power_state(to, 0) == NV_OK ? len : -EIO;
	return -EINVAL;
}

const struct proc_ops nvsim_suspend_ops = {
	.proc_open = open_suspend,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = write_suspend,
};
