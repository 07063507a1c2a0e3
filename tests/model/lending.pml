/* SPDX-License-Identifier: MIT
 *
 * Lending the time of an idle container: cgpu_km/core/sched_run_state.c, sched_rr.c, sched_plan.c; sched/sched_thread.c:
 * poll_run_state(), make_plan().
 *
 * The owner of the current turn begins and ends work at any moment; the source of the run state can be lost and come
 * back. The thread reads, then plans by the reading. Checked in every interleaving:
 *
 *   - time is lent only by a reading that is fresh and says idle;
 *   - an owner that has work at a reading has its time back with the plan that follows;
 *   - without a source nothing is lent after the next plan;
 *   - what the owner ran while its time was lent is charged to it, or it could gain by pretending to be idle.
 *
 * BUG=n must fail: 1 a plan keeps the reading of a source that was lost; 2 a reading of work does not end the plan; 3 the
 * owner's work in lent time is not charged.
 */
#ifndef BUG
#define BUG 0
#endif
#define ROUNDS 6

bool work;			/* the owner has some, on the GPU */
bool source = true;		/* readings can be had */
bool known, asleep;		/* the core's: set_run_state() */
bool lent;			/* the plan in force lets others run */
bool ran_lent;			/* the owner ran while its time was lent */
bool charged;
bool planning;			/* gpu->lock */

proctype owner()
{
	byte n = 0;

	do
	:: n < ROUNDS -> n++;
		if
		:: atomic { !planning -> work = !work; if :: work && lent -> ran_lent = true; charged = false :: else fi }
		:: atomic { !planning -> source = !source }
		fi
	:: else -> break
	od
}

proctype thread()
{
	byte n = 0;
	bool fits;

	do
	:: n < ROUNDS -> n++;
		/* poll_run_state(), under gpu->lock. */
		atomic {
			planning = true;
			fits = true;
			if
			:: source -> known = true; asleep = !work; fits = (asleep == lent)
			:: else -> fits = false	/* make_plan() clears what the core knows */
			fi;
#if BUG == 2
			fits = fits || lent;
#endif
			planning = false
		}
		if
		:: fits -> skip
		:: else ->
			/* make_plan(). */
			atomic {
				planning = true;
#if BUG != 1
				if :: !source -> known = false; asleep = false :: else fi;
#endif
				lent = known && asleep;
#if BUG != 3
				if :: ran_lent -> charged = true :: else fi;
#endif
				assert(!ran_lent || charged);
				ran_lent = false;
				assert(!lent || source);
				planning = false
			}
		fi;
		/* Work that began after the reading is found by the next one. */
		assert(!(known && !asleep && lent))
	:: else -> break
	od
}

init
{
	atomic { run owner(); run thread() }
}
