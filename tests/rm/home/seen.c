// SPDX-License-Identifier: MIT
/* What reached the GSP, kept until a client reads it. */
#include "home.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_BYTES 1024		/* of each request's parameters */

static struct home_seen *list;
static size_t list_nr, list_room;
static unsigned char *params;
static size_t params_bytes, params_room;

static void *room(void *p, size_t *have, size_t want, size_t each)
{
	if (want <= *have)
		return p;
	*have = want * 2;
	p = realloc(p, *have * each);
	if (!p)
		home_die("no memory for what reached the GSP");
	return p;
}

void gsp_host_seen(struct gsp_card *card, const struct gsp_seen *seen)
{
	size_t kept = seen->bytes < KEPT_BYTES ? seen->bytes : KEPT_BYTES;

	if (!seen->params)
		kept = 0;
	list = room(list, &list_room, list_nr + 1, sizeof(*list));
	params = room(params, &params_room, params_bytes + kept, 1);
	list[list_nr++] = (struct home_seen){
		card->index, seen->request, seen->client, seen->parent, seen->object, seen->number,
		(uint32_t)kept, (uint32_t)params_bytes,
	};
	if (kept)
		memcpy(params + params_bytes, seen->params, kept);
	params_bytes += kept;
}

size_t home_seen_nr(void)
{
	return list_nr;
}

const struct home_seen *home_seen(void)
{
	return list;
}

const unsigned char *home_seen_params(size_t *bytes)
{
	*bytes = params_bytes;
	return params;
}

void home_seen_clear(void)
{
	list_nr = 0;
	params_bytes = 0;
}
