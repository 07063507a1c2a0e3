// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nodes.h"

#ifndef CGPU_NODES_PATH
#define CGPU_NODES_PATH "/dev/cgpu"
#endif
#ifndef CGPU_NODES_MAGIC
#define CGPU_NODES_MAGIC	0x6367706e	/* CKM_NODEFS_MAGIC of cgpu_km/state/nodefs.c */
#endif
#define FLAG_NODEV	0x0004		/* ST_NODEV of statfs(); libc has no name for it */

/* From linux/mount.h and linux/openat2.h, which musl-gcc does not find. */
#define FSCONFIG_SET_FLAG	0
#define FSCONFIG_SET_STRING	1
#define FSCONFIG_CMD_CREATE	6
#define FSCONFIG_CMD_RECONFIGURE 7
#define CLOSE_ON_EXEC		1	/* FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC */
#define ATTR_NOSUID		0x02
#define ATTR_NODEV		0x04
#define ATTR_NOEXEC		0x08
#define PICK_MOUNT		9	/* FSPICK_CLOEXEC | FSPICK_EMPTY_PATH */
#define CLONE_TREE		1	/* OPEN_TREE_CLONE */
#define MOVE_FD_TO_FD		0x44	/* MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH */
#define IN_ROOT_NO_SYMLINKS	0x14	/* RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS */

struct open_how_0 {
	uint64_t flags, mode, resolve;
};

#define PARAMS_MAX	(16 << 10)
#define MODIFY		"ModifyDeviceFiles:"

/* ---- the nodes ---- */

static bool is_node_fs(const char *path, struct statfs *fs)
{
	return !statfs(path, fs) && (uint32_t)fs->f_type == CGPU_NODES_MAGIC;
}

bool nodes_ready(const char *dir, char *why, size_t size)
{
	char path[PATH_MAX];
	struct statfs fs;

	if (!*dir || strchr(dir, '/')) {
		snprintf(why, size, "the answer of cgpud has no directory of device nodes");
		return false;
	}
	snprintf(path, sizeof(path), CGPU_NODES_PATH "/%s", dir);
	if (!is_node_fs(path, &fs)) {
		/* If mkdir fails, mount reports it. EBUSY: a concurrent start was faster. */
		mkdir(CGPU_NODES_PATH, 0755);
		if (mount("cgpu", CGPU_NODES_PATH, "cgpu", MS_NOSUID | MS_NOEXEC, NULL) && errno != EBUSY) {
			snprintf(why, size,
				 "the device nodes of containers are not mounted on " CGPU_NODES_PATH
				 ", and mount -t cgpu cgpu " CGPU_NODES_PATH " fails: %s%s",
				 strerror(errno),
				 errno == ENODEV ? " (cgpu_km is not loaded, or of another version)" : "");
			return false;
		}
		if (!is_node_fs(path, &fs)) {
			snprintf(why, size, "%s is not there, although " CGPU_NODES_PATH " is mounted", path);
			return false;
		}
	}
	if (fs.f_flags & FLAG_NODEV) {
		snprintf(why, size, CGPU_NODES_PATH " is mounted with nodev, so that no device there can be opened");
		return false;
	}
	return true;
}

/* ---- the driver's parameters ---- */

static bool mask_failed(const char *what, char *why, size_t size)
{
	snprintf(why, size, "/proc/driver/nvidia/params cannot be masked: %s: %s", what, strerror(errno));
	return false;
}

/*
 * Copy @text to @out (of @size) with MODIFY 0. Returns the length, 0 if the text has
 * that value already, -1 if it is too long.
 */
static int masked_text(const char *text, char *out, size_t size)
{
	size_t len, n = 0;

	for (const char *line = text; *line; line += len) {
		len = strcspn(line, "\n");
		len += line[len] == '\n';
		if (!strncmp(line, MODIFY, strlen(MODIFY))) {
			if (!strtol(line + strlen(MODIFY), NULL, 10))
				return 0;
			continue;
		}
		if (n + len >= size)
			return -1;
		memcpy(out + n, line, len);
		n += len;
	}
	if (n && out[n - 1] != '\n' && n + 1 < size)
		out[n++] = '\n';
	if (n + sizeof(MODIFY " 0\n") > size)
		return -1;
	strcpy(out + n, MODIFY " 0\n");
	return (int)(n + strlen(MODIFY " 0\n"));
}

static int open_beneath(int dir, const char *path, uint64_t flags)
{
	struct open_how_0 how = { .flags = flags | O_CLOEXEC, .resolve = IN_ROOT_NO_SYMLINKS };

	return (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
}

/* Of the file system itself, since one mount alone is made read-only from Linux 5.12 on (mount_setattr). */
static bool make_read_only(int mnt)
{
	int fs = (int)syscall(SYS_fspick, mnt, "", PICK_MOUNT), err;
	bool done;

	if (fs < 0)
		return false;
	done = !syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "ro", NULL, 0) &&
	       !syscall(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0);
	err = errno;
	close(fs);
	errno = err;
	return done;
}

/* A read-only tmpfs mount, not attached to any path, with the file "params". */
static int make_tmpfs(const char *text, int len)
{
	int fs = (int)syscall(SYS_fsopen, "tmpfs", CLOSE_ON_EXEC), mnt = -1, file;
	ssize_t done;

	if (fs < 0)
		return -1;
	if (!syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", "64k", 0) &&
	    !syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "0755", 0) &&
	    !syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		mnt = (int)syscall(SYS_fsmount, fs, CLOSE_ON_EXEC, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
	close(fs);
	if (mnt < 0)
		return -1;
	file = openat(mnt, "params", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	done = file < 0 ? -1 : write(file, text, len);
	if (file >= 0)
		close(file);
	if (done == len && make_read_only(mnt))
		return mnt;
	close(mnt);
	return -1;
}

/*
 * A mount of one file, to be moved over another. open_tree() clones only attached
 * mounts, so attach the tmpfs to @dir for a moment: no process of the container runs
 * yet.
 */
static int clone_params(int mnt, int dir)
{
	int tree, err;

	if (syscall(SYS_move_mount, mnt, "", dir, "", MOVE_FD_TO_FD))
		return -1;
	tree = (int)syscall(SYS_open_tree, mnt, "params", CLONE_TREE | O_CLOEXEC);
	err = errno;
	if (fchdir(mnt) || umount2(".", MNT_DETACH) || chdir("/")) {
		err = errno;
		if (tree >= 0)
			close(tree);
		tree = -1;
	}
	errno = err;
	return tree;
}

bool mask_params(const char *root, char *why, size_t size)
{
	char text[PARAMS_MAX], out[PARAMS_MAX + sizeof(MODIFY " 0\n") + 1];
	int top, dir, file, mnt, tree, len;
	ssize_t got;

	top = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return mask_failed(root, why, size);
	dir = open_beneath(top, "proc/driver/nvidia", O_PATH | O_DIRECTORY);
	if (dir < 0)
		return errno == ENOENT || mask_failed("its directory", why, size);
	file = open_beneath(dir, "params", O_RDONLY);
	if (file < 0)
		return errno == ENOENT || mask_failed("open", why, size);
	got = read(file, text, sizeof(text) - 1);
	if (got < 0)
		return mask_failed("read", why, size);
	text[got] = 0;
	len = masked_text(text, out, sizeof(out));
	if (len < 0) {
		errno = EFBIG;
		return mask_failed("read", why, size);
	}
	if (!len)
		return true;
	mnt = make_tmpfs(out, len);
	if (mnt < 0)
		return mask_failed("tmpfs", why, size);
	tree = clone_params(mnt, dir);
	if (tree < 0)
		return mask_failed("clone", why, size);
	if (syscall(SYS_move_mount, tree, "", file, "", MOVE_FD_TO_FD))
		return mask_failed("mount", why, size);
	return true;
}
