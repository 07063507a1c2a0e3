/* SPDX-License-Identifier: MIT
 *
 * Swapping the core under running containers: cgpu_km/admin/core_swap.c: swap_locked(), carry_all(), ckm_core_unregister();
 * core_ref.c: ckm_core_enter(); sched/sched_thread.c: make_plan(), act().
 *
 * Two GPUs: of one a scheduler thread, of the other a tenant's call that uses its state; a call that uses the call table
 * only; an administrator who swaps between two cores, and one who unloads a core. Checked in every interleaving:
 *
 *   - no process calls a core whose module is gone;
 *   - a core gets a GPU's state in its own layout only;
 *   - the calls of a plan are answered to the core that made it;
 *   - no deadlock, and every swap ends.
 *
 * BUG=n leaves one step out, and must fail: 1 the swap takes no ctrl_lock; 2 it takes no gpu->lock; 3 the unloading does
 * not wait for the readers; 4 the tenant enters the core before gpu->lock; 5 gpu->lock is
 * taken before ctrl_lock; 6 a GPU whose migration succeeded keeps its new state when that of the other fails.
 */
#ifndef BUG
#define BUG 0
#endif
#define GPUS 2
#define CORES 2
#define SWAPS 2

/* Mutexes: ckm_lock; of each GPU ctrl_lock and lock. */
bool ckm_lock, ctrl_lock[GPUS], lock[GPUS];
inline take(m) { atomic { !m -> m = true } }
inline drop(m) { assert(m); m = false }

byte current;			/* the core whose table is used */
bool loaded[CORES] = true;	/* its module's text is there */
bool listed[CORES] = true;	/* ckm_core_register() */
bool going[CORES];		/* rmmod has begun: try_module_get() fails */
byte refs[CORES];		/* of the module; containers exist, so the active core has one */
byte layout[GPUS];		/* the core that can read the GPU's state */

/* RCU: which readers are in a section. */
#define READERS 4
bool reading[READERS];

inline enter(me, core)
{
	d_step { reading[me] = true; core = current }
	assert(loaded[core])
}

inline leave(me)
{
	reading[me] = false
}

/* Returns when every section that was open at its begin has ended. The readers here begin a bounded number of sections,
 * so to wait until each was seen outside of one is the same.
 */
inline synchronize_rcu()
{
	!reading[0]; !reading[1]; !reading[2]; !reading[3]
}

/* The scheduler thread of a GPU: a plan, its calls into the driver without gpu->lock, its acknowledgement. */
proctype scheduler(byte gpu)
{
	byte core, planner;

	take(ctrl_lock[gpu]);
	take(lock[gpu]);
	enter(gpu, core);
	assert(layout[gpu] == core);
	planner = core;
	leave(gpu);
	drop(lock[gpu]);
	skip;				/* the driver's calls */
	take(lock[gpu]);
	enter(gpu, core);
	assert(core == planner);	/* .step() */
	assert(layout[gpu] == core);
	leave(gpu);
	drop(lock[gpu]);
	drop(ctrl_lock[gpu])
}

/* A tenant's call that touches the state of GPU 0: ckm_sched_is_frozen(). */
proctype tenant()
{
	byte core;

#if BUG == 4
	enter(2, core);
	take(lock[0]);
#else
	take(lock[0]);
	enter(2, core);
#endif
	assert(layout[0] == core);
	leave(2);
	drop(lock[0])
}

/* A tenant's call that needs the call table only: it holds no lock of a GPU. */
proctype caller()
{
	byte core;

	enter(3, core);
	skip;
	assert(loaded[core]);
	leave(3)
}

proctype swapper()
{
	byte swaps = 0, to, from;
	bool got;

	do
	:: swaps < SWAPS ->
		swaps++;
		take(ckm_lock);
		from = current;
		to = 1 - from;
		atomic { got = listed[to] && !going[to]; if :: got -> refs[to]++ :: else fi }
		if
		:: !got -> drop(ckm_lock)
		:: else ->
#if BUG == 5
			take(lock[0]); take(lock[1]); take(ctrl_lock[0]); take(ctrl_lock[1]);
#else
#if BUG != 1
			take(ctrl_lock[0]); take(ctrl_lock[1]);
#endif
#if BUG != 2
			take(lock[0]); take(lock[1]);
#endif
#endif
			/* carry_all(): a migration can fail on either GPU; all of them change, or none. */
			if
			:: layout[0] = to; layout[1] = to; current = to
			:: skip
#if BUG == 6
			:: layout[0] = to
#endif
			fi;
#if BUG != 2
			drop(lock[0]); drop(lock[1]);
#endif
#if BUG != 1
			drop(ctrl_lock[0]); drop(ctrl_lock[1]);
#endif
			if
			:: current == to -> refs[from]--
			:: else -> refs[to]--
			fi;
			drop(ckm_lock)
		fi
	:: else -> break
	od
}

/* rmmod of a core: refused while it has references, then ckm_core_unregister(). */
proctype unloader()
{
	byte old;

	if
	:: old = 0
	:: old = 1
	fi;
	atomic { (true); if :: refs[old] == 0 -> going[old] = true :: else -> goto refused fi }
	take(ckm_lock);
	assert(current != old);
	listed[old] = false;
	drop(ckm_lock);
#if BUG != 3
	synchronize_rcu();
#endif
	loaded[old] = false;
refused:
	skip
}

init
{
	atomic {
		refs[current] = 1;
		run scheduler(1);
		run tenant();
		run caller();
		run swapper();
		run unloader()
	}
}
