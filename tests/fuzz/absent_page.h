/* SPDX-License-Identifier: MIT */
/*
 * The exact way to change an argument between two reads of it, on any number
 * of CPUs: the argument crosses the end of a page, and its second page is
 * absent. The kernel's first read takes the bytes before the end, then stops at
 * the missing page; we change a field that was just read, and let it go on.
 * Every later read sees the changed field.
 */
#ifndef ABSENT_PAGE_H
#define ABSENT_PAGE_H

#include <stddef.h>

/*
 * Returns the address of the absent page; the 64 KiB before it are there. @on_fault runs in a
 * thread of its own, each time the page is missed. NULL and errno if userfaultfd is not available.
 */
void *fault_area(void (*on_fault)(void));

/* Take the page away; its next content is @size bytes at @tail. */
void fault_arm(const void *tail, size_t size);

#endif
