// SPDX-License-Identifier: MIT
/* Options, processes and their deaths, quiet points, the report. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define STUCK_S		40	/* a call that takes longer never ends */

static const char help[] =
"abifuzz - speak the driver's ABI, well and badly, from many threads and processes\n"
"\n"
"  --dev DIR         where the container's nodes are ($NVSIM_DEV, /dev)\n"
"  --wrong-dev DIR   nodes that are none of this container's: their files are named in calls, never called\n"
"  --seed N          the same seed: each thread draws the same steps (1)\n"
"  --seconds T (10)  --steps N per thread (no limit)\n"
"  --processes N (2) --threads N (4)\n"
"  --quiet T         every T seconds all stand still: \"quiet\" on stdout, and a line on stdin goes on (0: never)\n"
"  --log FILE        every call, into FILE.<process>.<generation>.<thread>\n"
"  --only P.T        this thread of this process alone, to play a sequence again\n"
"  --no-disturb      arguments in flight are not rewritten and unmapped\n"
"  --no-forks        no children, no kills\n"
"  --no-contexts     no TSGs and channels, whose cost is an estimate: the two accounts are equal then\n"
"  --module B-E      addresses of cgpu_km's text: the report has those that were reached (a kernel with KCOV),\n"
"                    and steps that reach something new are played again with changes\n"
"  --corpus DIR      with --module: begin with the steps that are kept there, and keep those of this run\n"
"  --unguided        with --module: the same steps as without\n"
"  --rewrite         instead: each word of each call, rewritten between a first read and a second\n"
"\n"
"The last line of stdout is a report in JSON: per row of the call table how often it was answered with\n"
"success, answered with a status, or failed. Exit codes: 0 done, 1 failed, 2 usage, 3 a call never ended.\n";

const char *const count_names[COUNTS] = {
	"calls", "mutated", "allocs", "maps", "gpu_maps", "channels", "works", "dups", "exports",
	"imports", "frees", "forks", "kills", "disturbed", "files", "closed",
};

struct shared *shared;
struct card card;
int wrong_fd[MAX_WRONG], wrong_fds;
struct options opt = {
	.seed = 1, .seconds = 10, .processes = 2, .threads = 4, .only_process = -1, .only_thread = -1,
	.disturb = true, .forks = true, .contexts = true, .guided = true,
};

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* ---- what there is ---- */

static void keep(int fd)
{
	if (fd >= 0 && wrong_fds < MAX_WRONG)
		wrong_fd[wrong_fds++] = fcntl(fd, F_DUPFD, FIRST_KEPT_FD);
	close(fd);
}

static void open_wrong(void)
{
	static const char *const nodes[] = { "nvidiactl", "nvidia0", "nvidia-uvm" };
	char path[160];

	for (int i = 0; i < opt.wrong_dirs; i++)
		for (int n = 0; n < 3; n++) {
			snprintf(path, sizeof(path), "%s/%s", opt.wrong_dir[i], nodes[n]);
			keep(open(path, O_RDWR));
		}
	keep(open("/dev/null", O_RDWR));
	keep(open("/", O_RDONLY));
	keep(memfd_create("wrong", 0));
}

static void look_around(void)
{
	struct rm_gpu_info list[MAX_GPUS];
	struct rm_gpu gpu;
	unsigned int gpus;
	struct rm rm;

	if (rm_open(&rm, opt.dir) || rm_list_gpus(&rm, list, &gpus) || !gpus ||
	    rm_gpu_open(&gpu, &rm, &list[0]) || rm_gpu_find_arch(&gpu)) {
		fprintf(stderr, "abifuzz: %s: %s\n", rm.error.call, rm_strerror(rm.error.status));
		exit(1);
	}
	card = (struct card) { list[0].minor, list[0].device_instance, list[0].sub_device_instance, { 0 },
			       gpu.arch };
	memcpy(card.uuid, gpu.uuid, sizeof(card.uuid));
	grammar_load(rm.version);
	rm_gpu_close(&gpu);
	rm_close(&rm);
}

/* ---- processes ---- */

static struct { pid_t pid; int generation; } process[MAX_PROCESSES];
static bool failed, killed_stuck;

static void spawn(int n)
{
	fflush(stdout);
	process[n].pid = fork();
	if (!process[n].pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(worker_main(n, process[n].generation));
	}
}

/* Ours, and children of workers that were killed. */
static void reap(pid_t pid, int status, bool expected)
{
	seat_leave(pid);
	for (int n = 0; n < opt.processes; n++) {
		if (process[n].pid != pid)
			continue;
		process[n].pid = 0;
		if (!expected && status) {
			fprintf(stderr, "abifuzz: process %d ended with status %#x\n", n, status);
			failed = true;
		}
	}
}

static void reap_all(void)
{
	pid_t pid;
	int status;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		reap(pid, status, killed_stuck);
}

static void kill_and_respawn(int n)
{
	int status;

	if (process[n].pid <= 0)
		return;
	kill(process[n].pid, SIGKILL);
	waitpid(process[n].pid, &status, 0);
	reap(process[n].pid, status, true);
	count_one(COUNT_KILLS);
	process[n].generation++;
	spawn(n);
}

/* ---- quiet points ---- */

static int running(void)
{
	int n = 0;

	for (int i = 0; i < MAX_SEATS; i++)
		n += atomic_load(&shared->seat[i].state) == SEAT_RUNS;
	return n;
}

/* Where the kernel has each of its threads: root may look. */
static void say_where(pid_t pid)
{
	char path[320], text[2048];
	struct dirent *entry;
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	threads = opendir(path);
	if (!threads)
		return;
	while ((entry = readdir(threads))) {
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/stack", pid, entry->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		text[fread(text, 1, sizeof(text) - 1, file)] = 0;
		fprintf(stderr, "thread %s:\n%s", entry->d_name, text);
		fclose(file);
	}
	closedir(threads);
}

/* A call that does not end is the bug that the fuzzer looks for. A process that is
 * in no call, and can be killed, is a fault of the fuzzer: it is reported, and the
 * run goes on.
 */
static void stuck(void)
{
	bool in_a_call = false;

	for (int i = 0; i < MAX_SEATS; i++) {
		struct seat *s = &shared->seat[i];
		int row = atomic_load(&s->row);
		pid_t pid = atomic_load(&s->pid);

		if (atomic_load(&s->state) != SEAT_RUNS)
			continue;
		if (pid <= 0 || kill(pid, 0)) {	/* killed before its pid was in the seat: the seat is free */
			atomic_store(&s->state, SEAT_FREE);
			continue;
		}
		fprintf(stderr, "abifuzz: stuck: process %d at step %lu in %s\n", pid,
			atomic_load(&s->step), row < 0 ? "nothing" : rows[row].name);
		say_where(pid);
		in_a_call |= row >= 0;
		kill(pid, SIGKILL);
	}
	killed_stuck = true;
	if (in_a_call)
		exit(3);
}

void quiet_point(void)
{
	double limit = now() + STUCK_S;
	bool killed = false;
	char line[16];

	atomic_store(&shared->pause, true);
	while (running()) {
		reap_all();
		if (now() > limit) {
			if (killed)
				exit(3);
			stuck();
			killed = true;
			limit = now() + STUCK_S;
		}
		usleep(2000);
	}
	printf("quiet\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin)) {
		fputs("abifuzz: nobody answers on stdin\n", stderr);
		failed = true;
	}
	atomic_store(&shared->pause, false);
}

static void run(void)
{
	struct rng r = rng_for(opt.seed, 0x5afe, 0, 0);
	double start = now(), next_quiet = start + opt.quiet_s, next_kill = start + 3;
	bool living = true;

	for (int n = 0; n < opt.processes; n++)
		if (opt.only_process < 0 || opt.only_process == n)
			spawn(n);
	while (living && !failed && now() - start < opt.seconds) {
		usleep(20000);
		reap_all();
		coverage_sample(now() - start);
		if (opt.quiet_s && now() > next_quiet) {
			quiet_point();
			next_quiet = now() + opt.quiet_s;
		}
		if (opt.forks && now() > next_kill) {
			kill_and_respawn(rng_below(&r, opt.processes));
			next_kill = now() + 1 + rng_below(&r, 4);
		}
		living = false;
		for (int n = 0; n < opt.processes; n++)
			living |= process[n].pid > 0;
	}
	atomic_store(&shared->stop, true);
	start = now();
	for (int times = 0; waitpid(-1, NULL, WNOHANG) >= 0; usleep(2000)) {
		if (now() - start <= STUCK_S)
			continue;
		if (times++)
			exit(3);
		stuck();
		start = now();
	}
}

/* ---- the report ---- */

void report(void)
{
	static const char *const kinds[] = { "escape", "control", "class", "uvm" };

	printf("{\"seed\":%llu", (unsigned long long)opt.seed);
	for (int i = 0; i < COUNTS; i++)
		printf(",\"%s\":%lu", count_names[i], atomic_load(&shared->count[i]));
	printf(",\"rows\":[");
	for (int i = 0; i < row_count; i++)
		printf("%s{\"kind\":\"%s\",\"name\":\"%s\",\"ok\":%lu,\"status\":%lu,\"failed\":%lu,"
		       "\"rewritable\":%u,\"rewritten\":%u}",
		       i ? "," : "", kinds[rows[i].kind], rows[i].name, atomic_load(&shared->hit[i][0]),
		       atomic_load(&shared->hit[i][1]), atomic_load(&shared->hit[i][2]),
		       rewritable[i], rewritten[i]);
	printf("]");
	coverage_report();
	printf("}\n");
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "dev", 1, NULL, 'd' }, { "wrong-dev", 1, NULL, 'w' }, { "seed", 1, NULL, 's' },
		{ "seconds", 1, NULL, 't' }, { "steps", 1, NULL, 'n' }, { "processes", 1, NULL, 'p' },
		{ "threads", 1, NULL, 'T' }, { "quiet", 1, NULL, 'q' }, { "log", 1, NULL, 'l' },
		{ "only", 1, NULL, 'o' }, { "no-disturb", 0, NULL, 'D' }, { "no-forks", 0, NULL, 'F' }, { "no-contexts", 0, NULL, 'C' },
		{ "module", 1, NULL, 'm' }, { "corpus", 1, NULL, 'c' }, { "unguided", 0, NULL, 'U' },
		{ "rewrite", 0, NULL, 'r' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'd': opt.dir = optarg; break;
		case 'w': opt.wrong_dir[opt.wrong_dirs++ & 3] = optarg; break;
		case 's': opt.seed = strtoull(optarg, NULL, 0); break;
		case 't': opt.seconds = strtod(optarg, NULL); break;
		case 'n': opt.steps = strtoull(optarg, NULL, 0); break;
		case 'p': opt.processes = atoi(optarg); break;
		case 'T': opt.threads = atoi(optarg); break;
		case 'q': opt.quiet_s = strtod(optarg, NULL); break;
		case 'l': opt.log = optarg; break;
		case 'o': sscanf(optarg, "%d.%d", &opt.only_process, &opt.only_thread); break;
		case 'D': opt.disturb = false; break;
		case 'F': opt.forks = false; break;
		case 'C': opt.contexts = false; break;
		case 'm': sscanf(optarg, "%" SCNx64 "-%" SCNx64, &opt.module_begin, &opt.module_end); break;
		case 'c': opt.corpus = optarg; break;
		case 'U': opt.guided = false; break;
		case 'r': opt.rewrite = true; break;
		case 'h': fputs(help, stdout); exit(0);
		default: exit(2);
		}
	}
	if (opt.processes < 1 || opt.processes > MAX_PROCESSES || opt.threads < 1 || opt.threads > MAX_THREADS ||
	    opt.wrong_dirs > 4) {
		fputs("abifuzz: too many or too few (see --help)\n", stderr);
		exit(2);
	}
	if (opt.corpus && opt.module_end <= opt.module_begin) {
		fputs("abifuzz: --corpus needs --module\n", stderr);
		exit(2);
	}
	opt.guided &= opt.module_end > opt.module_begin && !opt.rewrite;
}

/* ---- the corpus ---- */

static char corpus_file[256];

static void load_corpus(void)
{
	if (!opt.corpus || !opt.guided)
		return;
	if (mkdir(opt.corpus, 0755) && errno != EEXIST) {
		perror(opt.corpus);
		exit(1);
	}
	if (snprintf(corpus_file, sizeof(corpus_file), "%s/steps", opt.corpus) >= (int)sizeof(corpus_file) ||
	    (corpus_load(&shared->corpus, corpus_file) && errno != ENOENT)) {
		fprintf(stderr, "abifuzz: %s is no corpus of this program: %s\n", corpus_file, strerror(errno));
		exit(1);
	}
}

static void save_corpus(void)
{
	if (*corpus_file && corpus_save(&shared->corpus, corpus_file)) {
		perror(corpus_file);
		failed = true;
	}
}

int main(int argc, char **argv)
{
	struct rlimit files = { 1024, 1024 };

	parse(argc, argv);
	if (!opt.dir)
		opt.dir = getenv("NVSIM_DEV");
	if (!opt.dir || !*opt.dir)
		opt.dir = "/dev";
	setrlimit(RLIMIT_NOFILE, &files);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		perror("abifuzz");
		return 1;
	}
	look_around();
	open_wrong();
	if (opt.rewrite)
		return rewrite_main();
	fprintf(stderr, "abifuzz: seed %llu\n", (unsigned long long)opt.seed);
	load_corpus();
	run();
	save_corpus();
	report();
	return failed;
}
