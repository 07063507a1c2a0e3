/* SPDX-License-Identifier: MIT */
/* What most files of the kernel include, compiled once (scripts/build-uml). CGPU_ALONE: a file that does without. */
#if !defined(__ASSEMBLER__) && !defined(CGPU_ALONE)
#include <linux/kconfig.h>
#include <linux/compiler_types.h>
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/bpf.h>
#include <linux/cgroup.h>
#include <linux/device.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/interrupt.h>
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pagemap.h>
#include <linux/poll.h>
#include <linux/ptrace.h>
#include <linux/rtnetlink.h>
#include <linux/sched.h>
#include <linux/security.h>
#include <linux/seq_file.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <net/sock.h>
#endif
