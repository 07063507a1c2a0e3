// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Strict parsers of the text that is written to /proc/cgpu_km. */
#include "text_parse.h"

#include "mem_ledger.h"
#include "text_sha256.h"

#define DIR_LEN	12
#define U32_TOP	0xffffffffull

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Value of a hex digit, or -1. */
static int hex_digit(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* A text and the place up to which it was parsed. */
struct cursor {
	const char *text;
	size_t len;
	size_t at;
};

static bool at_end(const struct cursor *c)
{
	return c->at >= c->len;
}

static bool eat(struct cursor *c, char wanted)
{
	if (at_end(c) || c->text[c->at] != wanted)
		return false;
	c->at++;
	return true;
}

static bool eat_word(struct cursor *c, const char *word)
{
	size_t len = strlen(word);

	if (c->len - c->at < len || memcmp(c->text + c->at, word, len) != 0)
		return false;
	c->at += len;
	return true;
}

/* Digits of @base up to the first other character. -EINVAL: none; -ERANGE:
 * above @top, the cursor is at the digit that was too much.
 */
static int eat_number(struct cursor *c, u32 base, u64 top, u64 *value)
{
	size_t begin = c->at;
	u64 sum = 0;

	for (; !at_end(c); c->at++) {
		int digit = hex_digit(c->text[c->at]);

		if (digit < 0 || (u32)digit >= base)
			break;
		if (sum > (top - (u32)digit) / base)
			return -ERANGE;
		sum = sum * base + (u32)digit;
	}
	if (c->at == begin)
		return -EINVAL;
	*value = sum;
	return 0;
}

/**
 * cgpu_parse_u64() - the text of a scalar file
 * @text: need not end in NUL
 * @len: its length
 * @value: filled on success only
 *
 * Return: 0; -EINVAL unless it is one unsigned decimal and at most one
 * newline; -ERANGE if all are digits and it does not fit 64 bits.
 */
int cgpu_parse_u64(const char *text, size_t len, u64 *value)
{
	struct cursor c = { text, len, 0 };
	u64 sum = 0;
	int err = eat_number(&c, 10, ~0ull, &sum);

	if (err == -ERANGE) {
		while (!at_end(&c) && is_digit(c.text[c.at]))
			c.at++;
	} else if (err) {
		return err;
	}
	eat(&c, '\n');
	if (!at_end(&c))
		return -EINVAL;
	if (!err)
		*value = sum;
	return err;
}

static bool is_id_char(char c)
{
	return c > ' ' && c <= '~' && c != '/' && c != '=';
}

/**
 * cgpu_parse_check_id() - may this be a container's id
 * @id: need not end in NUL
 * @len: its length
 *
 * Return: 0, or -EINVAL: empty, above 128 bytes, or anything but printable
 * ASCII without blank, '/' and '='. "." and ".." are none either.
 */
int cgpu_parse_check_id(const char *id, size_t len)
{
	size_t i;

	if (!len || len > CGPU_PARSE_ID_MAX)
		return -EINVAL;
	for (i = 0; i < len; i++) {
		if (!is_id_char(id[i]))
			return -EINVAL;
	}
	if (id[0] == '.' && (len == 1 || (len == 2 && id[1] == '.')))
		return -EINVAL;
	return 0;
}

static int eat_id(struct cursor *c, struct cgpu_inst_cmd *cmd)
{
	size_t begin = c->at, len;

	while (!at_end(c) && is_id_char(c->text[c->at]))
		c->at++;
	len = c->at - begin;
	if (cgpu_parse_check_id(c->text + begin, len)) {
		c->at = begin + (len > CGPU_PARSE_ID_MAX ? CGPU_PARSE_ID_MAX : 0);
		return -EINVAL;
	}
	memcpy(cmd->id, c->text + begin, len);
	cmd->id[len] = 0;
	return 0;
}

/* A comma list of decimals up to @top; *@count is how many. */
static int eat_list(struct cursor *c, u64 top, u64 *list, u32 *count)
{
	*count = 0;
	do {
		size_t begin = c->at;

		if (*count >= CGPU_PARSE_GPUS)
			return -EINVAL;
		if (eat_number(c, 10, top, &list[*count])) {
			if (!at_end(c) && is_digit(c->text[c->at]))
				c->at = begin;
			return -EINVAL;
		}
		(*count)++;
	} while (eat(c, ','));
	return 0;
}

/* The words of "create" after the id, as they were written. */
struct words {
	u64 gpu[CGPU_PARSE_GPUS], memsize[CGPU_PARSE_GPUS], weight[CGPU_PARSE_GPUS];
	u64 ceiling[CGPU_PARSE_GPUS];
	u32 gpus, memsizes, weights, ceilings;
	bool highprio, cookie;
};

static int eat_cookie(struct cursor *c, struct words *w, struct cgpu_inst_cmd *cmd)
{
	size_t begin = c->at;
	int err;

	if (w->cookie)
		return -EINVAL;
	w->cookie = true;
	err = eat_number(c, eat_word(c, "0x") ? 16 : 10, ~0ull, &cmd->cookie);
	if (!err && cmd->cookie)
		return 0;
	if (err != -EINVAL)
		c->at = begin;
	return -EINVAL;
}

static int eat_create_word(struct cursor *c, struct words *w, struct cgpu_inst_cmd *cmd)
{
	size_t begin = c->at;

	if (!w->gpus && eat_word(c, "gpu="))
		return eat_list(c, U32_TOP, w->gpu, &w->gpus);
	if (!w->memsizes && eat_word(c, "memsize="))
		return eat_list(c, ~0ull, w->memsize, &w->memsizes);
	if (!w->weights && eat_word(c, "weight="))
		return eat_list(c, U32_TOP, w->weight, &w->weights);
	if (!w->ceilings && eat_word(c, "ceiling="))
		return eat_list(c, U32_TOP, w->ceiling, &w->ceilings);
	if (!w->highprio && eat_word(c, "highprio=")) {
		w->highprio = true;
		cmd->highprio = !at_end(c) && c->text[c->at] == '1';
		return eat(c, '0') || eat(c, '1') ? 0 : -EINVAL;
	}
	if (eat_word(c, "cookie=")) {
		if (!eat_cookie(c, w, cmd))
			return 0;
		return -EINVAL;
	}
	c->at = begin;
	return -EINVAL;
}

/* Words -> one value per GPU; the last of a shorter list repeats. */
static int spread(const struct words *w, struct cgpu_inst_cmd *cmd)
{
	u32 i, j;

	if (!w->gpus || !w->memsizes || w->memsizes > w->gpus || w->weights > w->gpus ||
	    w->ceilings > w->gpus)
		return -EINVAL;
	cmd->gpus = w->gpus;
	for (i = 0; i < w->gpus; i++) {
		u32 m = i < w->memsizes ? i : w->memsizes - 1;
		u32 n = i < w->weights ? i : w->weights - 1;
		u32 k = i < w->ceilings ? i : w->ceilings - 1;

		for (j = 0; j < i; j++) {
			if (w->gpu[j] == w->gpu[i])
				return -EINVAL;
		}
		if (cgpu_ledger_check_limit(w->memsize[m]))
			return -EINVAL;
		cmd->gpu[i] = (u32)w->gpu[i];
		cmd->memsize[i] = w->memsize[m];
		cmd->weight[i] = w->weights ? (u32)w->weight[n] : 1;
		cmd->ceiling[i] = w->ceilings ? (u32)w->ceiling[k] : 0;
	}
	return 0;
}

static int eat_inst(struct cursor *c, struct cgpu_inst_cmd *cmd)
{
	struct words w;
	int err;

	memset(&w, 0, sizeof(w));
	if (eat_word(c, "create "))
		cmd->verb = CGPU_VERB_CREATE;
	else if (eat_word(c, "destroy "))
		cmd->verb = CGPU_VERB_DESTROY;
	else
		return -EINVAL;
	err = eat_id(c, cmd);
	while (!err && eat(c, ' ')) {
		if (cmd->verb == CGPU_VERB_CREATE)
			err = eat_create_word(c, &w, cmd);
		else
			err = eat_word(c, "cookie=") ? eat_cookie(c, &w, cmd) : -EINVAL;
	}
	if (err)
		return err;
	if (!at_end(c) && !(c->at + 1 == c->len && c->text[c->at] == '\n'))
		return -EINVAL;
	return cmd->verb == CGPU_VERB_CREATE ? spread(&w, cmd) : 0;
}

/**
 * cgpu_parse_inst() - a line written to inst_ctl
 * @text: need not end in NUL
 * @len: its length
 * @cmd: filled; of no meaning after an error
 * @at: after an error the offset of the byte that was wrong, @len where
 *      something was missing at the end or the values do not go together
 *
 * Return: 0 or -EINVAL.
 */
int cgpu_parse_inst(const char *text, size_t len, struct cgpu_inst_cmd *cmd, size_t *at)
{
	struct cursor c = { text, len, 0 };
	int err;

	memset(cmd, 0, sizeof(*cmd));
	err = eat_inst(&c, cmd);
	*at = c.at;
	return err;
}

static char lower(char c)
{
	return c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c;
}

/**
 * cgpu_parse_dir() - directory name of a container
 * @id: its id, need not end in NUL
 * @len: its length
 * @collides: another container has the short name already
 * @dir: 13 bytes, filled and NUL terminated
 */
void cgpu_parse_dir(const char *id, size_t len, bool collides, char *dir)
{
	static const char digits[] = "0123456789abcdef";
	u8 digest[32];
	u32 i, hex = 0;

	while (hex < DIR_LEN && hex < len && hex_digit(id[hex]) >= 0)
		hex++;
	dir[DIR_LEN] = 0;
	if (hex == DIR_LEN && !collides) {
		for (i = 0; i < DIR_LEN; i++)
			dir[i] = lower(id[i]);
		return;
	}
	cgpu_sha256((const u8 *)id, len, digest);
	for (i = 0; i < DIR_LEN; i++)
		dir[i] = digits[digest[i / 2] >> (i % 2 ? 0 : 4) & 0xf];
}
