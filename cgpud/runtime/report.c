// SPDX-License-Identifier: MIT
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "report.h"
#include "text.h"

static const char *log_path;
static bool log_json;

void report_to(const char *path, bool json)
{
	log_path = path;
	log_json = json;
}

static void write_record(const char *level, const char *text)
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
	/* The engine's shim shows the last "error" record of this file to the user. */
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	buf_puts(&line, "cgpu: ");
	buf_puts(&line, text);
	if (log_json) {
		struct buf js = { 0 };

		buf_puts(&js, "{\"level\":\"");
		buf_puts(&js, level);
		buf_puts(&js, "\",\"msg\":");
		buf_put_json(&js, line.p);
		buf_puts(&js, ",\"time\":\"");
		buf_puts(&js, when);
		buf_puts(&js, "\"}\n");
		fwrite(js.p, 1, js.len, f);
	} else {
		struct buf js = { 0 };

		buf_put_json(&js, line.p);
		fprintf(f, "time=\"%s\" level=%s msg=%s\n", when, level, js.p);
	}
	fclose(f);
}

void report_error(const char *fmt, ...)
{
	char text[SENTENCE_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "cgpu: %s\n", text);
	write_record("error", text);
}

void report_warning(const char *text)
{
	fprintf(stderr, "cgpu: warning: %s\n", text);
	write_record("warning", text);
}
