/* SPDX-License-Identifier: MIT */
/*
 * A JSON tokenizer that recognises strings and nesting depth only. It accepts
 * any bytes, whether they are valid JSON or not.
 */
#ifndef CGPU_RUNTIME_JSON_SCAN_H
#define CGPU_RUNTIME_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "text.h"

/*
 * Does any string of the document look like NAME=value of a cGPU variable, or of
 * NVIDIA's limit of a container? This is a superset of "process.env contains one";
 * the daemon parses the document, and has the configuration.
 */
bool json_mentions_cgpu(const char *text, size_t len);

/*
 * Copy the value of a key of the outermost object to @out if it is a string or a
 * bare word. Returns '"' or 'x' accordingly, 0 if there is no such value or it is
 * too long. If the key occurs more than once, the first one counts.
 */
int json_top_value(const char *text, size_t len, const char *key, char *out, size_t size);

/*
 * Append the document to @out without the members of the outermost object that have this
 * name. Upper and lower case are the same, as for Go's decoder, of letters of ASCII.
 */
void json_put_without(struct buf *out, const char *text, size_t len, const char *key);

/*
 * The name of the first entry of @list (capability_in()) that a string within the value of
 * the key "capabilities" of the outermost object is: an OCI process's. NULL: none is.
 * Upper and lower case are the same, for keys as they are for Go's decoder.
 */
const char *json_capability(const char *text, size_t len, const struct capability *list);

#endif
