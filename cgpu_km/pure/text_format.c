// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Numbers and lists as /proc/cgpu_km writes them. */
#include "text_format.h"

/* Text being written; @full once something did not fit. */
struct writer {
	char *buf;
	size_t size;
	size_t len;
	bool full;
};

static void put(struct writer *w, const char *text, size_t len)
{
	if (w->full || len > w->size - w->len) {
		w->full = true;
		return;
	}
	memcpy(w->buf + w->len, text, len);
	w->len += len;
}

static void put_text(struct writer *w, const char *text)
{
	put(w, text, strlen(text));
}

static void put_u64(struct writer *w, u64 value)
{
	char digits[20];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	put(w, digits + at, sizeof(digits) - at);
}

static void put_line(struct writer *w, const char *name, u64 value)
{
	put_text(w, name);
	put_u64(w, value);
	put(w, "\n", 1);
}

static int result(const struct writer *w)
{
	return w->full ? -ENOSPC : (int)w->len;
}

/**
 * cgpu_format_meminfo() - the text of meminfo
 * @buf: filled, not NUL terminated
 * @size: of @buf
 * @free_bytes: what may still be allocated
 * @pids: in the order they are to be listed
 * @count: of @pids
 *
 * Return: bytes written, or -ENOSPC.
 */
int cgpu_format_meminfo(char *buf, size_t size, u64 free_bytes,
			const struct cgpu_pid_mem *pids, u32 count)
{
	struct writer w = { buf, size, 0, false };
	u32 i;

	put_line(&w, "Free: ", free_bytes);
	for (i = 0; i < count; i++) {
		put_text(&w, "PID: ");
		put_u64(&w, pids[i].pid);
		put_line(&w, " Mem: ", pids[i].bytes);
	}
	return result(&w);
}

static void sift_down(struct cgpu_pid_mem *pids, u32 root, u32 count)
{
	for (;;) {
		u32 child = 2 * root + 1;
		struct cgpu_pid_mem held = pids[root];

		if (child >= count)
			return;
		if (child + 1 < count && pids[child + 1].pid > pids[child].pid)
			child++;
		if (pids[child].pid <= held.pid)
			return;
		pids[root] = pids[child];
		pids[child] = held;
		root = child;
	}
}

/**
 * cgpu_format_merge_pids() - one entry per process, ascending by pid
 * @pids: entries in any order, several of a pid allowed; changed in place
 * @count: of @pids
 *
 * Heap sort: no recursion and no bad case that a tenant could provoke.
 *
 * Return: how many entries are left.
 */
u32 cgpu_format_merge_pids(struct cgpu_pid_mem *pids, u32 count)
{
	u32 i, out = 0;

	for (i = count / 2; i-- > 0;)
		sift_down(pids, i, count);
	for (i = count; i-- > 1;) {
		struct cgpu_pid_mem top = pids[0];

		pids[0] = pids[i];
		pids[i] = top;
		sift_down(pids, 0, i);
	}
	for (i = 0; i < count; i++) {
		if (out && pids[out - 1].pid == pids[i].pid)
			pids[out - 1].bytes += pids[i].bytes;
		else
			pids[out++] = pids[i];
	}
	return out;
}

/**
 * cgpu_format_slot_stat() - the text of a container's stat file
 * @buf: filled, not NUL terminated
 * @size: of @buf
 * @led: its memory
 * @st: its time
 * @refused_calls: calls refused by the call table
 *
 * Names and order are docs/reference/proc.md, section 4.
 *
 * Return: bytes written, or -ENOSPC.
 */
int cgpu_format_slot_stat(char *buf, size_t size, const struct cgpu_ledger *led,
			  const struct cgpu_sched_stat *st, u64 refused_calls)
{
	struct writer w = { buf, size, 0, false };

	put_line(&w, "gpu_ns ", st->gpu_ns);
	put_line(&w, "wait_ns ", st->wait_ns);
	put_line(&w, "turns ", st->turns);
	put_line(&w, "overruns ", st->overruns);
	put_line(&w, "running ", st->running);
	put_line(&w, "opened ", st->opened);
	put_line(&w, "limit_bytes ", led->limit_bytes);
	put_line(&w, "used_bytes ", led->used_bytes);
	put_line(&w, "peak_bytes ", led->peak_bytes);
	put_line(&w, "refused_allocs ", led->refused);
	put_line(&w, "refused_calls ", refused_calls);
	put_line(&w, "enforced ", st->enforced);
	put_line(&w, "unsure_ns ", st->unsure_ns);
	put_line(&w, "failed_calls ", st->failed);
	put_line(&w, "preempt_slow ", st->preempt_slow);
	return result(&w);
}

/**
 * cgpu_format_slot_waits() - the part of a container's stat file about its waits
 * @buf: filled, not NUL terminated
 * @size: of @buf
 * @st: its time
 *
 * Each bucket includes those before it, as Prometheus has them.
 *
 * Return: bytes written, or -ENOSPC.
 */
int cgpu_format_slot_waits(char *buf, size_t size, const struct cgpu_sched_stat *st)
{
	const struct cgpu_wait *wait = &st->wait;
	struct writer w = { buf, size, 0, false };
	u64 below = 0;
	u32 i;

	for (i = 0; i < CGPU_WAIT_BUCKETS; i++) {
		below += wait->bucket[i];
		put_text(&w, "wait_lt_");
		put_u64(&w, (u64)CGPU_WAIT_FIRST_NS << i);
		put_line(&w, " ", below);
	}
	put_line(&w, "waits ", wait->count);
	put_line(&w, "waits_ns ", wait->sum_ns);
	put_line(&w, "throttled_ns ", st->throttled_ns);
	return result(&w);
}
