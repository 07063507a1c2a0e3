/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The kinds of memory that N/C/stat shows apart. */
#ifndef CKM_MEM_KIND_H
#define CKM_MEM_KIND_H

/* What a slot's memory is charged for. */
enum ckm_mem_kind {
	CKM_MEM_DATA,		/* memory objects that the container has allocated */
	CKM_MEM_CONTEXT,	/* graphics and compute contexts */
	CKM_MEM_MANAGED,	/* ranges of nvidia-uvm */
	CKM_MEM_IMPORTED,	/* of another container */
	CKM_MEM_TABLES,		/* page tables, address spaces and channels beyond the allowance */
	CKM_MEM_KINDS,
};

#endif
