// SPDX-License-Identifier: MIT
/* Clients, devices, TSGs and channels of this process, as its own successful calls name them. */
#include <pthread.h>
#include <string.h>

#include "rmlever.h"

#define OBJECTS_MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* guards both below */
static struct object objects[OBJECTS_MAX];
static unsigned int count;

enum kind object_kind(const struct object *o)
{
	switch (o->class_id) {
	case 0: case 1: case 0x41:
		return CLIENT;
	case NV01_DEVICE_0:
		return DEVICE;
	case NV20_SUBDEVICE_0:
		return SUBDEVICE;
	case KEPLER_CHANNEL_GROUP_A:
		return TSG;
	}
	/* Every GPFIFO class from Fermi on: 906f, a06f, ... c86f, ca6f. */
	return (o->class_id & 0xff) == 0x6f && o->class_id >= 0x906f && o->class_id <= 0xffff ? CHANNEL : OTHER;
}

/* NV2080_ENGINE_TYPE_GR0 to GR7. A request without an engine gets the first. */
bool object_is_graphics(const struct object *o)
{
	return o->engine <= 8;
}

/* The struct grew in its life: 32, 40 and 48 bytes, the first two with the status in two places. */
uint32_t alloc_status_at(uint32_t size)
{
	bool old = driver_branch && driver_branch < 535;

	if (size >= 48)
		return 40;
	if (size >= 40)
		return driver_branch && driver_branch < 525 ? 32 : 36;
	return old ? 24 : 28;
}

static struct object *find(uint32_t client, uint32_t handle)
{
	for (unsigned int i = 0; i < count; i++)
		if (objects[i].client == client && objects[i].handle == handle)
			return &objects[i];
	return NULL;
}

static void drop_locked(uint32_t client, uint32_t handle)
{
	for (unsigned int i = 0; i < count;) {
		struct object *o = &objects[i];

		if (o->client == client && o->handle != handle && (o->parent == handle || client == handle)) {
			drop_locked(client, o->handle);
			i = 0;
			continue;
		}
		i++;
	}
	for (unsigned int i = 0; i < count; i++) {
		if (objects[i].client != client || objects[i].handle != handle)
			continue;
		memmove(&objects[i], &objects[i + 1], (--count - i) * sizeof(objects[0]));
		return;
	}
}

static void read_engine(struct object *o, const unsigned char *params)
{
	const struct object *tsg;

	if (object_kind(o) == TSG && params)
		o->engine = word_at(params + 12);
	if (object_kind(o) != CHANNEL)
		return;
	if (params)
		o->engine = word_at(params + 128);
	tsg = find(o->client, o->parent);
	if (tsg && object_kind(tsg) == TSG) {
		o->tsg = tsg->handle;
		o->engine = o->engine ? o->engine : tsg->engine;
	}
}

void objects_alloc(int fd, const unsigned char *arg, uint32_t size)
{
	struct object o = {
		.client = word_at(arg), .parent = word_at(arg + 4), .handle = word_at(arg + 8),
		.class_id = word_at(arg + 12), .fd = -1,
	};

	if (size < 32 || word_at(arg + alloc_status_at(size)) || object_kind(&o) == OTHER)
		return;
	if (object_kind(&o) == CLIENT) {
		o.client = o.handle;
		o.fd = fd;
	}
	pthread_mutex_lock(&lock);
	/* The call was answered, so its parameters could be read. */
	read_engine(&o, (const unsigned char *)(uintptr_t)long_at(arg + 16));
	if (count < OBJECTS_MAX)
		objects[count++] = o;
	pthread_mutex_unlock(&lock);
	if (object_kind(&o) == CLIENT)
		control_start();
}

void objects_free(const unsigned char *arg)
{
	if (word_at(arg + 12))
		return;
	pthread_mutex_lock(&lock);
	drop_locked(word_at(arg), word_at(arg + 8));
	pthread_mutex_unlock(&lock);
}

/* Clients end with their file. */
void objects_close(int fd)
{
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < count;) {
		if (objects[i].fd == fd) {
			drop_locked(objects[i].client, objects[i].client);
			i = 0;
		} else {
			i++;
		}
	}
	pthread_mutex_unlock(&lock);
}

void objects_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	count = 0;
}

unsigned int objects_list(enum kind kind, struct object *out, unsigned int max)
{
	unsigned int found = 0;

	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < count && found < max; i++)
		if (object_kind(&objects[i]) == kind)
			out[found++] = objects[i];
	pthread_mutex_unlock(&lock);
	return found;
}

int objects_fd(uint32_t client)
{
	struct object *o;
	int fd;

	pthread_mutex_lock(&lock);
	o = find(client, client);
	fd = o ? o->fd : -1;
	pthread_mutex_unlock(&lock);
	return fd;
}

static struct object *device_of(const struct object *o)
{
	struct object *up;

	for (up = find(o->client, o->handle); up && object_kind(up) != DEVICE; up = find(up->client, up->parent))
		if (object_kind(up) == CLIENT)
			return NULL;
	return up;
}

bool objects_subdevice(const struct object *of, struct object *out)
{
	const struct object *device;
	bool found = false, best = false;

	pthread_mutex_lock(&lock);
	device = device_of(of);
	for (unsigned int i = 0; i < count && !best; i++) {
		if (object_kind(&objects[i]) != SUBDEVICE)
			continue;
		best = device && objects[i].client == device->client && objects[i].parent == device->handle;
		if (best || !found)
			*out = objects[i];
		found = true;
	}
	pthread_mutex_unlock(&lock);
	return found;
}
