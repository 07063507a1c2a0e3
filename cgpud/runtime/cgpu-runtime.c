// SPDX-License-Identifier: MIT
/*
 * cgpu-runtime: the OCI low-level runtime that stands in front of runc or crun.
 *
 * It decides nothing. For create, run and restore of a bundle whose config.json
 * holds a cGPU variable it asks cgpud, which admits the container and edits the
 * file; everything else, and afterwards this too, is exec'ed with the very same
 * arguments. Two more roles of the same binary:
 *
 *   cgpu-runtime hook bind     createRuntime: hands a pidfd of the init process
 *   cgpu-runtime hook release  poststop: the container is gone
 *   nvidia-container-cli-cgpu  (by argv[0]) NVIDIA's legacy CLI without devices
 *
 * No daemon (one that is being started again is waited for), no answer, a strange
 * answer: the container does not start.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef CGPU_SOCKET_PATH
#define CGPU_SOCKET_PATH "/run/cgpu/cgpud.sock"
#endif
#ifndef CGPU_CONF_PATH
#define CGPU_CONF_PATH "/etc/cgpu/runtime.conf"
#endif

#define FILE_MAX	(16u << 20)	/* largest config.json looked at */
#define CONF_MAX	(64u << 10)
#define REPLY_MAX	(64u << 10)
#define SENTENCE_MAX	2048
#define TIMEOUT_S	60
#define WAIT_S		10		/* for a daemon that is being started again; wait_s of runtime.conf */
#define WAIT_MAX_S	60		/* the daemon gives the bind hook twice as long */

static const char *log_path;		/* --log of the engine, if any */
static bool log_json;
/* Of whom it is said that it cannot start. */
static const char *subject = "a container with cGPU variables";

/* ---- a growing string ---- */

struct buf {
	char *p;
	size_t len, cap;
};

static void put(struct buf *b, const char *s, size_t n)
{
	if (b->len + n + 1 > b->cap) {
		b->cap = (b->len + n + 1) * 2;
		b->p = realloc(b->p, b->cap);
		if (!b->p)
			abort();
	}
	memcpy(b->p + b->len, s, n);
	b->len += n;
	b->p[b->len] = 0;
}

static void puts_to(struct buf *b, const char *s)
{
	put(b, s, strlen(s));
}

/* Append s as a JSON string. Bytes that are not ASCII go through as they are. */
static void put_json(struct buf *b, const char *s)
{
	char esc[8];

	puts_to(b, "\"");
	for (; *s; s++) {
		unsigned char c = *s;

		if (c == '"' || c == '\\' || c < 0x20) {
			snprintf(esc, sizeof(esc), "\\u%04x", c);
			puts_to(b, esc);
		} else {
			put(b, s, 1);
		}
	}
	puts_to(b, "\"");
}

/* ---- saying why ---- */

static void report(const char *level, const char *text)
{
	struct buf line = { 0 };
	time_t now = time(NULL);
	char when[64];
	struct tm tm;
	FILE *f;

	if (!log_path)
		return;
	f = fopen(log_path, "ae");
	if (!f)
		return;
	/* The engine's shim reads the last "error" record of this file. */
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	puts_to(&line, "cgpu: ");
	puts_to(&line, text);
	if (log_json) {
		struct buf js = { 0 };

		puts_to(&js, "{\"level\":\"");
		puts_to(&js, level);
		puts_to(&js, "\",\"msg\":");
		put_json(&js, line.p);
		puts_to(&js, ",\"time\":\"");
		puts_to(&js, when);
		puts_to(&js, "\"}\n");
		fwrite(js.p, 1, js.len, f);
	} else {
		struct buf js = { 0 };

		put_json(&js, line.p);
		fprintf(f, "time=\"%s\" level=%s msg=%s\n", when, level, js.p);
	}
	fclose(f);
}

static void say(const char *fmt, ...)
{
	char text[SENTENCE_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "cgpu: %s\n", text);
	report("error", text);
}

/* The container starts, and not as its owner will expect. */
static void warn(const char *text)
{
	fprintf(stderr, "cgpu: warning: %s\n", text);
	report("warning", text);
}

/* ---- a JSON tokenizer: strings, depth and nothing else ---- */

struct scan {
	const char *p, *end;
	int depth;
	bool colon;			/* the last token was ':' */
	struct buf str;			/* the last string, unescaped */
};

static int hex4(const char *p, const char *end)
{
	int v = 0;

	if (end - p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		if (!isxdigit((unsigned char)p[i]))
			return -1;
		v = v * 16 + (isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
	}
	return v;
}

/* s->p is behind the opening quote; leaves it behind the closing one. */
static void scan_string(struct scan *s)
{
	s->str.len = 0;
	put(&s->str, "", 0);
	while (s->p < s->end && *s->p != '"') {
		char c = *s->p++;

		if (c == '\\' && s->p < s->end) {
			c = *s->p++;
			switch (c) {
			case 'n': c = '\n'; break;
			case 't': c = '\t'; break;
			case 'r': c = '\r'; break;
			case 'b': c = '\b'; break;
			case 'f': c = '\f'; break;
			case 'u': {
				int v = hex4(s->p, s->end);

				if (v < 0)
					continue;
				s->p += 4;
				/* What is not ASCII matters to nobody here. */
				c = v > 0 && v < 0x80 ? (char)v : '?';
				break;
			}
			}
		}
		put(&s->str, &c, 1);
	}
	if (s->p < s->end)
		s->p++;
}

/* Next token: '"' (in s->str), one of {}[]:, or 'x' for a bare word; 0 at the end. */
static int scan_next(struct scan *s)
{
	while (s->p < s->end && (isspace((unsigned char)*s->p) || !*s->p))
		s->p++;
	if (s->p >= s->end)
		return 0;
	switch (*s->p) {
	case '"':
		s->p++;
		scan_string(s);
		return '"';
	case '{': case '[':
		s->depth++;
		return *s->p++;
	case '}': case ']':
		s->depth--;
		return *s->p++;
	case ':': case ',':
		return *s->p++;
	}
	s->str.len = 0;
	put(&s->str, "", 0);
	while (s->p < s->end && !strchr("\"{}[]:, \t\r\n", *s->p))
		put(&s->str, s->p++, 1);
	return 'x';
}

static bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/*
 * Does any string of the document look like NAME=value of one of our variables?
 * A superset of "process.env has one": the daemon looks again, properly.
 */
static bool mentions_cgpu(const char *text, size_t len)
{
	struct scan s = { .p = text, .end = text + len };
	bool found = false;
	int t;

	/* Both names have this in them, and only an escape could hide it. */
	if (!memchr(text, '\\', len) && !memmem(text, len, "GPU_", 4))
		return false;
	while (!found && (t = scan_next(&s)))
		found = t == '"' && strchr(s.str.p, '=') &&
			(starts(s.str.p, "ALIYUN_COM_GPU_") || starts(s.str.p, "CGPU_DISABLE="));
	free(s.str.p);
	return found;
}

/*
 * Value of a key of the outermost object: a string ('"') or a bare word ('x') is
 * copied to out. Returns the kind, or 0. The first such key wins.
 */
static int top_value(const char *text, size_t len, const char *key, char *out, size_t size)
{
	struct scan s = { .p = text, .end = text + len };
	int t, prev = 0, kind = 0;

	while ((t = scan_next(&s))) {
		if (t == '"' && s.depth == 1 && (prev == '{' || prev == ',') && !strcmp(s.str.p, key)) {
			if (scan_next(&s) != ':')
				break;
			t = scan_next(&s);
			if ((t == '"' || t == 'x') && s.str.len < size) {
				strcpy(out, s.str.p);
				kind = t;
			}
			break;
		}
		prev = t;
	}
	free(s.str.p);
	return kind;
}

/* ---- files ---- */

static char *slurp(int fd, size_t max, size_t *len)
{
	size_t cap = 4096, got = 0;
	char *text = NULL;
	struct stat st;
	ssize_t n = 1;

	if (!fstat(fd, &st) && st.st_size > 0 && (size_t)st.st_size <= max)
		cap = st.st_size + 2;	/* the end is seen without growing */
	while (n) {
		if (!text || got + 1 == cap) {
			cap *= text ? 2 : 1;
			text = realloc(text, cap);
			if (!text)
				abort();
		}
		n = read(fd, text + got, cap - got - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 || got + n > max) {
			free(text);
			return NULL;
		}
		got += n;
	}
	text[got] = 0;
	*len = got;
	return text;
}

/* All of runtime.conf, read once and without malloc; empty if there is none, or with conf_bad. */
static bool conf_bad;

static const char *conf_text(void)
{
	static char text[CONF_MAX + 2];
	static bool known;
	size_t got = 0;
	ssize_t n = 1;
	int fd;

	if (known)
		return text;
	known = true;
	fd = open(CGPU_CONF_PATH, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		conf_bad = errno != ENOENT && errno != ENOTDIR;
		return text;
	}
	while (n > 0 && got <= CONF_MAX) {
		n = read(fd, text + got, CONF_MAX + 1 - got);
		if (n > 0)
			got += n;
		else if (n < 0 && errno == EINTR)
			n = 1;
	}
	close(fd);
	conf_bad = n < 0 || got > CONF_MAX;
	text[conf_bad ? 0 : got] = 0;
	return text;
}

/* Value of "key = value" in runtime.conf, or NULL. '#' begins a comment line. */
static char *conf_get(const char *key)
{
	static char value[PATH_MAX];
	size_t n;

	for (const char *line = conf_text(); *line; line += n, line += *line == '\n') {
		const char *k = line + strspn(line, " \t");
		size_t len = strcspn(k, " \t=\r\n");

		n = strcspn(line, "\n");
		if (*k == '#' || len != strlen(key) || strncmp(k, key, len))
			continue;
		k += len;
		k += strspn(k, " \t=\"");
		len = strcspn(k, "\"\r\n");
		while (len && isspace((unsigned char)k[len - 1]))
			len--;
		if (len >= sizeof(value))
			len = sizeof(value) - 1;	/* no program has such a name, nor is it a number */
		memcpy(value, k, len);
		value[len] = 0;
		return value;
	}
	return NULL;
}

/* ---- the real runtime ---- */

static bool is_me(const char *path)
{
	/* By the name we were started by: what /proc has costs more, and is not everywhere. */
	const char *own = (const char *)getauxval(AT_EXECFN);
	struct stat a, b;

	if (stat(path, &a) || ((!own || stat(own, &b)) && stat("/proc/self/exe", &b)))
		return false;
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static const char *find_program(const char *name)
{
	static char found[PATH_MAX];
	const char *dirs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	const char *lists[2] = { getenv("PATH"), dirs };
	size_t size = strlen(name) + 1;

	if (strchr(name, '/'))
		return !access(name, X_OK) && !is_me(name) ? name : NULL;
	for (int i = 0; i < 2; i++) {
		for (const char *p = lists[i]; p && *p; p += *p == ':') {
			const char *dir = p;
			size_t n = strcspn(p, ":");

			p += n;
			if (*dir != '/' || n + 1 + size > sizeof(found))
				continue;
			memcpy(found, dir, n);
			found[n] = '/';
			memcpy(found + n + 1, name, size);
			if (!access(found, X_OK) && !is_me(found))
				return found;
		}
	}
	return NULL;
}

#define PID_MARK "CGPU_RUNTIME_PID="

/*
 * Whether this very process was here before: exec keeps the pid. What comes next
 * then calls us, as nvidia-container-runtime does where we are in its runtimes.
 * Else @env, of @size, is the environment with a mark that says so to the next one.
 */
static bool went_round(char **env, size_t size)
{
	static char mark[sizeof(PID_MARK) + 12];
	unsigned int pid = getpid();
	size_t n = 0, at = sizeof(mark) - 1;

	do
		mark[--at] = '0' + pid % 10;
	while (pid /= 10);
	at -= strlen(PID_MARK);
	memcpy(mark + at, PID_MARK, strlen(PID_MARK));
	for (char **e = environ; *e && n + 2 <= size; e++) {
		if (!strcmp(*e, mark + at))
			return true;
		if (!starts(*e, PID_MARK))
			env[n++] = *e;
	}
	env[n++] = mark + at;
	env[n] = NULL;
	return false;
}

static int exec_next(char **argv)
{
	const char *by_env = getenv("CGPU_RUNTIME_NEXT"), *conf = conf_get("next");
	const char *wanted = by_env && *by_env ? by_env : conf, *path = NULL;
	size_t n = 2;

	for (char **e = environ; *e; e++)
		n++;

	char *env[n];

	if (went_round(env, n)) {
		say("the runtime that cgpu-runtime hands over to, %s, calls cgpu-runtime again: name runc or crun instead",
		    wanted && *wanted ? wanted : "runc");
		return 1;
	}
	if (wanted && *wanted) {
		path = find_program(wanted);
	} else {
		path = find_program("runc");
		if (!path)
			path = find_program("crun");
	}
	if (!path) {
		say("no runtime to hand over to: %s was not found", wanted && *wanted ? wanted : "neither runc nor crun");
		return 1;
	}
	argv[0] = (char *)path;
	execve(path, argv, env);
	say("cannot execute %s: %s", path, strerror(errno));
	return 1;
}

/* ---- talking to the daemon ---- */

/* A connected socket; -1 with errno: EPERM if somebody else listens there. */
static int connect_daemon(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct timeval tv = { .tv_sec = TIMEOUT_S };
	struct ucred peer;
	socklen_t n = sizeof(peer);
	int err, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", CGPU_SOCKET_PATH);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n))
		err = errno;
	else if (peer.uid && peer.uid != geteuid())
		err = EPERM;
	else
		return fd;
	close(fd);
	errno = err;
	return -1;
}

static bool send_request(int fd, const struct buf *b, int passed)
{
	uint32_t be = __builtin_bswap32((uint32_t)b->len);
	char ctl[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov[2] = { { &be, 4 }, { b->p, b->len } };
	struct msghdr mh = { .msg_iov = iov, .msg_iovlen = 2 };
	size_t sent, total = 4 + b->len;
	ssize_t n;

	if (passed >= 0) {
		struct cmsghdr *c;

		mh.msg_control = ctl;
		mh.msg_controllen = sizeof(ctl);
		c = CMSG_FIRSTHDR(&mh);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &passed, sizeof(int));
	}
	n = sendmsg(fd, &mh, MSG_NOSIGNAL);
	if (n < 4)
		return false;
	for (sent = n; sent < total; sent += n) {
		n = send(fd, b->p + sent - 4, total - sent, MSG_NOSIGNAL);
		if (n <= 0)
			return false;
	}
	return true;
}

static bool recv_all(int fd, void *to, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = recv(fd, (char *)to + got, len - got, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (!n)
			errno = ECONNRESET;
		if (n <= 0)
			return false;
		got += n;
	}
	return true;
}

enum answer {
	YES,
	NO,				/* and the reason was said */
	NOBODY,				/* there is no daemon, or it went away over it: errno says how */
};

/* Whether it is what a daemon leaves behind that ended, not one that is slow or not ours. */
static bool went_away(void)
{
	return errno == ENOENT || errno == ECONNREFUSED || errno == ECONNRESET || errno == EPIPE;
}

/* One request, one reply. */
static enum answer ask_once(const struct buf *request, int passed)
{
	char ok[16], why[SENTENCE_MAX];
	enum answer answer = NO;
	char *reply = NULL;
	uint32_t len;
	int fd = connect_daemon();

	if (fd < 0)
		return NOBODY;
	errno = 0;
	if (!send_request(fd, request, passed) || !recv_all(fd, &len, 4) ||
	    (len = __builtin_bswap32(len)) > REPLY_MAX || !(reply = malloc(len + 1)) || !recv_all(fd, reply, len)) {
		if (went_away())
			answer = NOBODY;
		else
			say("cgpud gave no answer within %d s", TIMEOUT_S);
	} else if (top_value(reply, len, "ok", ok, sizeof(ok)) == 'x' && !strcmp(ok, "true")) {
		answer = YES;
		if (top_value(reply, len, "warning", why, sizeof(why)) == '"' && *why)
			warn(why);
	} else if (top_value(reply, len, "error", why, sizeof(why)) == '"' && *why) {
		say("%s", why);
	} else {
		say("cgpud gave an answer that is not understood");
	}
	free(reply);
	close(fd);
	if (answer == NOBODY)
		errno = ECONNRESET;
	return answer;
}

/* How long a start waits for a daemon that is not there, in seconds; -1: runtime.conf makes no sense. */
static int wait_s(void)
{
	const char *text = conf_get("wait_s");
	char *end;
	long n;

	if (!text)
		return WAIT_S;
	n = strtol(text, &end, 10);
	return *text && !*end && n >= 0 && n <= WAIT_MAX_S ? (int)n : -1;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/*
 * For a start: a daemon that is being started again is waited for. Both requests
 * may be made twice, so one that went down with the last daemon does no harm.
 * True when the daemon said ok; else the reason was said.
 */
static bool ask(const struct buf *request, int passed)
{
	const struct timespec nap = { .tv_nsec = 100000000 };
	enum answer answer = ask_once(request, passed);
	double until = 0;
	int wait = 0;

	while (answer == NOBODY) {
		if (!went_away()) {
			if (errno == EACCES && geteuid())
				say("%s cannot be started by another user than root: rootless engines get no slices",
				    subject);
			else
				say("cgpud cannot be asked on %s: %s", CGPU_SOCKET_PATH, strerror(errno));
			return false;
		}
		if (!until) {
			wait = wait_s();
			if (wait < 0) {
				say("wait_s in %s is not a number of seconds from 0 to %d", CGPU_CONF_PATH, WAIT_MAX_S);
				return false;
			}
			until = seconds() + wait;
		}
		if (seconds() >= until) {
			say("cgpud does not answer on %s, not within %d s, so %s cannot start", CGPU_SOCKET_PATH, wait,
			    subject);
			return false;
		}
		nanosleep(&nap, NULL);
		answer = ask_once(request, passed);
	}
	return answer == YES;
}

/* At the end nobody waits: a daemon that is not there finds out when it is. */
static void tell(const struct buf *request)
{
	if (ask_once(request, -1) == NOBODY)
		say("cgpud does not answer on %s; it takes the slice back when it is there again", CGPU_SOCKET_PATH);
}

/* ---- the command line of runc and crun ---- */

struct command {
	const char *verb;		/* create, run, restore or NULL */
	const char *bundle, *id;
	int ids;
};

static bool in_list(const char *word, size_t n, const char *const *list)
{
	for (; *list; list++)
		if (strlen(*list) == n && !strncmp(word, *list, n))
			return true;
	return false;
}

/* Options whose value is the next argument, of runc and crun together. */
static const char *const valued[] = {
	"root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager",
	"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds", "config", "f",
	"image-path", "work-path", "parent-path", "manage-cgroups-mode", "empty-ns",
	"lsm-profile", "lsm-mount-context", "status-fd", "tcp-skip-in-flight", NULL,
};
static const char *const ours[] = { "create", "run", "restore", NULL };
static const char *const others[] = {
	"checkpoint", "delete", "events", "exec", "features", "help", "h", "init", "kill", "list", "mounts",
	"pause", "ps", "resume", "spec", "start", "state", "update", "version", NULL,
};

static void parse_command(int argc, char **argv, struct command *c)
{
	const char *verb = NULL;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *value = NULL;
		size_t n;

		if (*a != '-' || !a[1]) {
			if (!verb) {
				verb = a;
				if (in_list(a, strlen(a), others))
					return;
				if (in_list(a, strlen(a), ours))
					c->verb = a;
			} else if (!c->verb && in_list(a, strlen(a), ours)) {
				c->verb = a;	/* the first word was the value of an option we do not know */
			} else {
				c->id = a;
				c->ids++;
			}
			continue;
		}
		a += 1 + (a[1] == '-');
		n = strcspn(a, "=");
		if (a[n] == '=')
			value = a + n + 1;
		else if (in_list(a, n, valued) && i + 1 < argc)
			value = argv[++i];
		if (!value)
			continue;
		if ((n == 6 && !strncmp(a, "bundle", 6)) || (n == 1 && *a == 'b'))
			c->bundle = value;
		else if (n == 3 && !strncmp(a, "log", 3))
			log_path = value;
		else if (n == 10 && !strncmp(a, "log-format", 10))
			log_json = !strcmp(value, "json");
	}
}

static void field(struct buf *b, const char *key, const char *value)
{
	puts_to(b, b->len ? "," : "{");
	put_json(b, key);
	puts_to(b, ":");
	put_json(b, value);
}

/* What an engine wants of a bundle whose config.json is at @path: 0 to hand over, 1 to ask, -1 to end. */
static int look_at(const char *path)
{
	const char *always = conf_get("ask");
	bool mentioned;
	size_t len = 0;
	char *text;
	int fd;

	if (conf_bad) {
		say("%s cannot be read or is larger than %u KiB", CGPU_CONF_PATH, CONF_MAX >> 10);
		return -1;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;			/* the runtime says it better */
	text = slurp(fd, FILE_MAX, &len);
	close(fd);
	if (!text) {
		say("%s cannot be read or is larger than %u MiB", path, FILE_MAX >> 20);
		return -1;
	}
	mentioned = mentions_cgpu(text, len);
	free(text);
	if (mentioned || !always || strcmp(always, "always"))
		return mentioned;
	subject = "a container (runtime.conf says ask = always)";
	return 1;
}

static int run_as_runtime(int argc, char **argv)
{
	struct command c = { 0 };
	char bundle[PATH_MAX + 16], self[PATH_MAX] = "";
	struct buf req = { 0 };
	size_t len;
	int look;

	parse_command(argc, argv, &c);
	if (!c.verb || !realpath(c.bundle ? c.bundle : ".", bundle))
		return exec_next(argv);
	len = strlen(bundle);
	strcpy(bundle + len, "/config.json");
	look = look_at(bundle);
	bundle[len] = 0;
	if (look <= 0)
		return look ? 1 : exec_next(argv);
	if (c.ids != 1) {
		say("the id of the container is not to be seen in the arguments of %s", c.verb);
		return 1;
	}
	if (!realpath("/proc/self/exe", self))
		self[0] = 0;
	field(&req, "op", "prepare");
	field(&req, "id", c.id);
	field(&req, "bundle", bundle);
	field(&req, "verb", c.verb);
	field(&req, "runtime", self);	/* the hooks are to call this very program */
	puts_to(&req, "}");
	if (!ask(&req, -1))
		return 1;
	return exec_next(argv);
}

/* ---- hooks ---- */

static int run_as_hook(const char *which, const char *cookie)
{
	char id[512], pid[16];
	struct buf req = { 0 };
	bool bind = !strcmp(which, "bind");
	int pidfd = -1;
	size_t len = 0;
	char *state = slurp(STDIN_FILENO, FILE_MAX, &len);

	if (!bind && strcmp(which, "release")) {
		say("hook %s is not one of bind, release", which);
		return 1;
	}
	if (!state || top_value(state, len, "id", id, sizeof(id)) != '"') {
		say("the runtime gave the hook no container state");
		return 1;
	}
	if (bind) {
		if (top_value(state, len, "pid", pid, sizeof(pid)) != 'x' || atoi(pid) <= 0) {
			say("the runtime gave the hook no pid");
			return 1;
		}
		/* The runtime waits for us and is the parent: the pid cannot be reused here. */
		pidfd = syscall(SYS_pidfd_open, atoi(pid), 0);
		if (pidfd < 0) {
			say("pidfd_open of %s: %s", pid, strerror(errno));
			return 1;
		}
	}
	field(&req, "op", which);
	field(&req, "id", id);
	field(&req, "cookie", cookie);
	puts_to(&req, "}");
	if (bind)
		return ask(&req, pidfd) ? 0 : 1;
	tell(&req);
	return 0;
}

/* ---- NVIDIA's legacy CLI: libraries yes, devices no ---- */

static int run_as_nvidia_cli(int argc, char **argv)
{
	const char *real = conf_get("nvidia-container-cli");
	char **out = calloc(argc + 3, sizeof(*out));
	bool done = false;
	int n = 0;

	if (!out)
		abort();
	if (!real)
		real = "/usr/bin/nvidia-container-cli";
	out[n++] = (char *)real;
	for (int i = 1; i < argc; i++) {
		out[n++] = argv[i];
		if (!done && !strcmp(argv[i], "configure")) {
			out[n++] = "--no-devbind";
			out[n++] = "--no-cgroups";
			done = true;
		}
	}
	if (!is_me(real))
		execv(real, out);
	say("cannot execute %s: %s", real, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	const char *cookie = "0";
	const char *name;

	if (argc < 1 || !argv[0])
		return 1;
	name = strrchr(argv[0], '/');
	name = name ? name + 1 : argv[0];
	if (!strcmp(name, "nvidia-container-cli-cgpu"))
		return run_as_nvidia_cli(argc, argv);
	if (argc >= 3 && !strcmp(argv[1], "hook")) {
		if (argc >= 4 && starts(argv[3], "--cookie="))
			cookie = argv[3] + strlen("--cookie=");
		return run_as_hook(argv[2], cookie);
	}
	return run_as_runtime(argc, argv);
}
