/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface between the shim and the engine. Neither fio's types, whose layout may change, nor Rust's types cross it:
 * src/abi.rs has the same structures, and both sides assert their sizes.
 */
#ifndef IRONMAP_FIO_SHIM_H
#define IRONMAP_FIO_SHIM_H

#include <stddef.h>
#include <stdint.h>

enum ironmap_op {
	IRONMAP_READ,
	IRONMAP_WRITE,
	IRONMAP_TRIM,
	IRONMAP_SYNC,
	IRONMAP_DATASYNC,
};

/* How writes are made durable. */
enum ironmap_durable {
	IRONMAP_LATER,
	IRONMAP_DSYNC_EACH,
	IRONMAP_SYNC_EACH,
};

/* The options of a job. Strings may be NULL. */
struct ironmap_job {
	const char *volume;
	const char *engine;
	const char *integrity;
	uint64_t max_block;	/* bytes of the longest request */
	uint64_t pad;		/* bytes before each buffer's data (iomem_align) */
	uint32_t depth;
	uint32_t durable;
	uint8_t writes;
	uint8_t strict;
	uint8_t fixedbufs;
	uint8_t simple;
	uint8_t host;		/* the files are on the host */
	uint8_t unused[3];
};

enum ironmap_content {
	IRONMAP_GROWS,		/* created empty; writes extend it */
	IRONMAP_SPARSE,		/* the full size, without space */
	IRONMAP_PREALLOCATED,	/* the full size, without content */
	IRONMAP_WRITTEN,
};

/* The way to create a file that is missing or too short. */
struct ironmap_layout {
	uint64_t size;
	uint64_t piece;		/* bytes that one call of fill writes */
	void (*fill)(void *job, void *memory, uint64_t len);
	void *job;
	uint32_t content;
	uint8_t create;		/* whether the job may create or extend it */
	uint8_t unused[3];
};

struct ironmap_request {
	void *memory;
	uint64_t len;
	uint64_t pos;
	uint64_t file;		/* the result of ironmap_fio_open_file */
	uint32_t op;
	uint32_t index;		/* the number of the request in the job */
};

/* The result of a request. */
struct ironmap_end {
	uint64_t done;		/* bytes */
	uint32_t index;
	int32_t error;		/* errno, or 0 */
};

_Static_assert(sizeof(struct ironmap_job) == 56, "as in src/abi.rs");
_Static_assert(sizeof(struct ironmap_layout) == 40, "as in src/abi.rs");
_Static_assert(sizeof(struct ironmap_request) == 40, "as in src/abi.rs");
_Static_assert(sizeof(struct ironmap_end) == 16, "as in src/abi.rs");

/*
 * Functions of the engine. A function that fails prints the reason in a line, and returns an errno; ironmap_fio_open_job returns NULL and
 * ironmap_fio_open_file 0.
 */
int ironmap_fio_file_size(const struct ironmap_job *, const char *path, uint64_t *size, int *exists);
int ironmap_fio_lay_out(const struct ironmap_job *, const char *path, const struct ironmap_layout *);
int ironmap_fio_unlink(const struct ironmap_job *, const char *path);
void *ironmap_fio_open_job(const struct ironmap_job *);
int ironmap_fio_close_job(void *job);
void *ironmap_fio_buffer(void *job, uint32_t index);	/* NULL if the job waits for each request */
uint64_t ironmap_fio_open_file(void *job, const char *path, int *error);
void ironmap_fio_close_file(void *job, uint64_t file);

enum ironmap_queued {
	IRONMAP_COMPLETED,	/* the end has the result */
	IRONMAP_QUEUED,
	IRONMAP_BUSY,		/* fio must reap completions first */
};

int ironmap_fio_queue(void *job, const struct ironmap_request *, struct ironmap_end *);
int ironmap_fio_commit(void *job);
int ironmap_fio_reap(void *job, uint32_t min, uint32_t max);
struct ironmap_end ironmap_fio_end(void *job, uint32_t number);

/* Functions of the shim: the engine in fio's form, and a message for the user. */
void *ironmap_fio_ops(void);
void ironmap_fio_tell(const char *line);

#endif
