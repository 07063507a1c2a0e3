// SPDX-License-Identifier: MIT
/* The socket of a process, $RMLEVER_DIR/<pid>.sock. A connection has a thread of its own in the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rmlever.h"

static struct sockaddr_un address = { .sun_family = AF_UNIX };
static int listener = -1;
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;	/* guards listener */

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg;
	FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");

	if (in && out)
		requests_serve(in, out);
	if (in)
		fclose(in);
	if (out)
		fclose(out);
	else
		close(fd);
	return NULL;
}

static void *listen_for(void *arg)
{
	int on = (int)(intptr_t)arg, fd;
	pthread_t thread;

	while ((fd = accept4(on, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == EINTR || errno == ECONNABORTED) {
		if (fd < 0)
			continue;
		if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd))
			close(fd);
		else
			pthread_detach(thread);
	}
	return NULL;
}

static int open_listener(const char *dir)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%.80s/%d.sock", dir, getpid());
	unlink(address.sun_path);
	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && chmod(address.sun_path, 0600) == 0 &&
	    listen(fd, 8) == 0)
		return fd;
	dprintf(2, "rmlever: %s: %s\n", address.sun_path, strerror(errno));
	close(fd);
	return -1;
}

/* Called when there is something to act on; the program's signals are not for our threads. */
void control_start(void)
{
	const char *dir = getenv("RMLEVER_DIR");
	sigset_t all, before;
	pthread_t thread;

	if (!dir || !*dir)
		return;
	pthread_mutex_lock(&start_lock);
	if (listener < 0) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		listener = open_listener(dir);
		if (listener >= 0 && pthread_create(&thread, NULL, listen_for, (void *)(intptr_t)listener) == 0)
			pthread_detach(thread);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_mutex_unlock(&start_lock);
}

void control_forked(void)
{
	pthread_mutex_init(&start_lock, NULL);
	if (listener >= 0)
		close(listener);
	listener = -1;
	address.sun_path[0] = 0;
}

void control_end(void)
{
	if (address.sun_path[0])
		unlink(address.sun_path);
}
