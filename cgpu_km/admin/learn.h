/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the driver says of a GPU while it is attached: where another answer, or none, would last until the last container
 * is gone, a call that fails for a passing reason (no memory, a timeout) fails the attach. The next create tries again.
 */
#ifndef CKM_LEARN_H
#define CKM_LEARN_H

#include <linux/types.h>

struct ckm_gpu;

/* The driver's number of the GPU, by the module's client. False: the driver does not say it. Calls the driver. */
bool ckm_gpu_learn_instance(struct ckm_gpu *gpu);
/* Sizes, UUID, controls, architecture, copy engines; with the module's device and subdevice. False: a call failed; the
 * kernel log says which. Sleeps: calls the driver; takes gpu->lock.
 */
bool ckm_gpu_learn(struct ckm_gpu *gpu);

#endif
