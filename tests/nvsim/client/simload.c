/* SPDX-License-Identifier: MIT */
/*
 * simload: a load generator for the simulated GPU. This file starts the
 * processes, passes signals on and collects the results; --help has the rest.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "simload.h"

/* Fork before any file is opened: a client belongs to the process that made it. */
static void start_children(const struct options *opt, struct shared *sh)
{
	pid_t parent = getpid();

	for (unsigned int i = 0; i < opt->processes; i++) {
		pid_t pid = fork();

		if (pid < 0) {
			fprintf(stderr, "simload: fork: %s\n", strerror(errno));
			sh->stop = 1;
			exit(EXIT_FAILED);
		}
		if (pid)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(EXIT_FAILED);
		_exit(worker_run(opt, sh, i, NULL));
	}
}

static bool all_ended(const struct options *opt, const struct shared *sh)
{
	for (unsigned int i = 0; i < opt->processes; i++)
		if (!sh->result[i].ended)
			return false;
	return true;
}

/* A worker that was killed leaves its slot unfinished: close it for the report. */
static unsigned int bury(const struct options *opt, struct shared *sh)
{
	unsigned int dead = 0;
	pid_t pid;
	int how;

	while ((pid = waitpid(-1, &how, WNOHANG)) > 0) {
		for (unsigned int i = 0; i < opt->processes; i++) {
			struct result *r = &sh->result[i];

			if (r->pid != pid)
				continue;
			dead++;
			if (!r->ended)
				r->exit_code = EXIT_FAILED;
			r->ended = true;
		}
	}
	return dead;
}

static int run_many(const struct options *opt, struct shared *sh)
{
	unsigned int alive = opt->processes;
	bool reported = false;
	int code = EXIT_OK;

	start_children(opt, sh);
	while (alive) {
		nap(opt->interval_ns && opt->interval_ns < 20000000 ? opt->interval_ns : 20000000);
		if (got_signal)
			__atomic_store_n(&sh->stop, 1, __ATOMIC_RELAXED);
		report_progress(opt, sh);
		alive -= bury(opt, sh);
		if (!reported && all_ended(opt, sh)) {
			report_result(opt, sh);
			reported = true;
		}
	}
	for (unsigned int i = 0; i < opt->processes && !code; i++)
		code = sh->result[i].exit_code;
	return code;
}

static int run_one(const struct options *opt, struct shared *sh)
{
	int code = worker_run(opt, sh, 0, opt->info ? NULL : report_progress);

	if (opt->info)
		report_info(opt, &sh->result[0]);
	return code;
}

int main(int argc, char **argv)
{
	struct options opt;
	struct shared *sh;

	options_parse(&opt, argc, argv);
	if (opt.info)
		opt.processes = 1;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED) {
		fprintf(stderr, "simload: mmap of the results: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	sh->born_ns = now_ns();
	catch_signals();
	prctl(PR_SET_TIMERSLACK, 1);
	return opt.processes > 1 ? run_many(&opt, sh) : run_one(&opt, sh);
}
