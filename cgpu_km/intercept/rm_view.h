/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a process sees of memory that the driver allocated.
 *
 * A mapping of a GPU's node shows a part of BAR1. RM_FREE of the memory, RM_UNMAP_MEMORY or the end of the client's
 * file makes that part free, and the driver gives it to the next mapping, another container's too. It
 * leaves the page tables of processes as they are (os_unmap_user_space() is empty), and a file can be
 * mapped again afterwards. So the pages are taken away here before the driver gets the part back, and
 * neither mmap nor a fault fills them in again.
 *
 * A control file maps system memory. The driver's mapping context of the file has the address of the memory's record
 * and no reference: the driver frees the record with the last handle, if no mapping is there, or leaves it to the file
 * of the last mapping to go, and an mmap of another file, or of that file again, would take pages by what the record's
 * memory has become (nv_free_pages(), nvidia_vma_release(), nvidia_mmap_helper(); 535 to 595). So a control file is
 * mapped only while the handle exists by which its context was made. Mappings that there are have a reference.
 */
#ifndef CKM_RM_VIEW_H
#define CKM_RM_VIEW_H

#include <linux/types.h>

struct ckm_backing;
struct ckm_container;
struct ckm_cpu_map;
struct ckm_obj;
struct cgpu_obj;
struct vm_area_struct;

/* The mmap of a GPU node's file. The driver fills the pages in before the kernel knows the mapping as one of the
 * file: what takes them away at the same time waits until it does. They are not left to the fault,
 * because the driver's fills in nothing of a mapping that was split, and on x86 before Linux 6.16 it fills in
 * without write combining once PAT has no entry for the place. 0; -ENXIO: what it showed is gone; or the driver's
 * error. Sleeps; the caller holds mmap_lock; takes view_lock of the file.
 */
int ckm_view_mmap(struct ckm_backing *backing, struct vm_area_struct *vma);

/* The mmap of a control file. 0; -EINVAL: it has nothing to show; -ENXIO: that was freed; or the driver's error. Sleeps;
 * the caller holds mmap_lock; takes view_lock of the file, which a free of the memory waits for.
 */
int ckm_view_mmap_system(struct ckm_backing *backing, struct vm_area_struct *vma);

/* @memory, pinned, is what @backing shows from here on: a GPU's node by @map, a control file with @map NULL. The call that
 * made the file's context runs. Caller holds rm_lock.
 */
void ckm_view_begin_locked(struct ckm_backing *backing, struct ckm_obj *memory, struct ckm_cpu_map *map);

/* Take away what is seen of @map, which the caller has taken out of its tree, or with false let it be
 * seen again. Sleeps; takes view_lock, rm_lock.
 */
void ckm_view_end(struct ckm_container *ct, struct ckm_cpu_map *map, bool ended);

/* The same for good, for all that is below @root, which is being freed: no mapping is added there. Sleeps;
 * takes view_lock, and rm_lock for some mappings at a time.
 */
void ckm_views_end(struct ckm_container *ct, const struct cgpu_obj *root);

/* Before the driver releases the file, which shows nothing any more: a control file takes its clients along. Sleeps;
 * takes view_lock, rm_lock.
 */
void ckm_views_file_ends(struct ckm_backing *backing);

#endif
