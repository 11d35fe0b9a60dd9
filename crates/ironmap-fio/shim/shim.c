/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Converts fio's types to those of shim.h, and does nothing else. Only fio's own header defines the layout of its types, so this file is
 * compiled against that header. The running fio provides the functions of fio that this file calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include "shim.h"

/* fio writes the address of the job into the first member. */
struct options {
	void *job;
	char *volume;
	char *engine;
	char *integrity;
	unsigned int host;
	unsigned int fixedbufs;
	unsigned int simple;
};

static struct fio_option options[] = {
	{
		.name	= "volume",
		.lname	= "Volume",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct options, volume),
		.help	= "Device or image (IMAGE@OFFSET, IMAGE@pN, integrity:DATA,TAGS) whose files are read and written",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "host",
		.lname	= "Host files",
		.type	= FIO_OPT_STR_SET,
		.off1	= offsetof(struct options, host),
		.help	= "Read files of mounted ext4 and XFS file systems around the kernel, instead of those of a volume",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "engine",
		.lname	= "ironmap's engine",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct options, engine),
		.help	= "auto, psync, io_uring, io_uring_poll, dax or null",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "fixedbufs",
		.lname	= "Registered buffers",
		.type	= FIO_OPT_STR_SET,
		.off1	= offsetof(struct options, fixedbufs),
		.help	= "Register the memory of requests with io_uring",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "simple",
		.lname	= "Simple path",
		.type	= FIO_OPT_BOOL,
		.off1	= offsetof(struct options, simple),
		.def	= "1",
		.help	= "Let requests of one block take the simple path",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "integrity",
		.lname	= "Stable pages",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct options, integrity),
		.help	= "zero-copy, bounce, lazy or owned; if not given, as the device needs it",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= NULL,
	},
};

static struct ioengine_ops ops;

void ironmap_fio_tell(const char *line)
{
	log_err("ironmap: %s\n", line);
}

static struct ironmap_job job_of(struct thread_data *td)
{
	const struct options *o = td->eo;
	const struct thread_options *t = &td->o;
	bool dsync = t->sync_io == O_DSYNC;
	/* Without create_serialize the jobs lay out the files, after the first of them has opened the volume for all. */
	bool makes = t->unlink || t->unlink_each_loop || !t->create_serialize;

	return (struct ironmap_job) {
		.volume		= o->volume,
		.engine		= o->engine,
		.integrity	= o->integrity,
		.max_block	= td_max_bs(td),
		.pad		= t->mem_align,
		.depth		= t->iodepth,
		.durable	= dsync ? IRONMAP_DSYNC_EACH : t->sync_io ? IRONMAP_SYNC_EACH : IRONMAP_LATER,
		.writes		= td_write(td) || td_trim(td) || (makes && !o->host),
		.strict		= t->odirect,
		.fixedbufs	= o->fixedbufs,
		.simple		= o->simple,
		.host		= o->host != 0,
	};
}

/*
 * Whether this header's thread_data is that of the running fio: if a member before the engine's pointer had another size, the pointer
 * would not be here. The version was compared at the load of the library, but a build of fio may change it. No other member is read
 * before this check, or after it fails.
 */
static bool is_same_layout(const struct thread_data *td)
{
	return td->io_ops == &ops;
}

static bool check_layout(const struct thread_data *td)
{
	if (is_same_layout(td))
		return true;
	log_err("ironmap: this fio is not built as the source that the engine was built against (FIO_SRC)\n");
	return false;
}

static int get_file_size(struct thread_data *td, struct fio_file *f, int *exists)
{
	struct ironmap_job job = job_of(td);
	uint64_t size = 0;
	int error = ironmap_fio_file_size(&job, f->file_name, &size, exists);

	if (error)
		return error;
	/* The host may have a file of that name. */
	f->filetype = FIO_TYPE_FILE;
	f->real_file_size = size;
	fio_file_set_size_known(f);
	return 0;
}

static int engine_get_file_size(struct thread_data *td, struct fio_file *f)
{
	int exists;

	if (!is_same_layout(td))
		return 1;
	return fio_file_size_known(f) ? 0 : get_file_size(td, f, &exists);
}

/* Fills a buffer with fio's pattern, or with random data, as fio's options choose. */
static void fill(void *job, void *memory, uint64_t len)
{
	struct thread_data *td = job;

	fill_io_buffer(td, memory, len, len);
}

static enum ironmap_content content_of(struct thread_data *td)
{
	const struct thread_options *o = &td->o;

	if (td_read(td) || td_trim(td) || (o->overwrite && !o->file_append))
		return IRONMAP_WRITTEN;
	switch (o->fallocate_mode) {
	case FIO_FALLOCATE_NONE:
		return IRONMAP_GROWS;
	case FIO_FALLOCATE_TRUNCATE:
		return IRONMAP_SPARSE;
	default:
		return IRONMAP_PREALLOCATED;
	}
}

/* fio treats a failed setup, which can happen with create_serialize=0, as a failure of the thread only if this is set too. */
static int fail_setup(struct thread_data *td, int error)
{
	td_verror(td, error, "setup");
	return 1;
}

/* fio lays out files by system calls on their names. An engine whose files are elsewhere must do this itself. */
static int setup(struct thread_data *td)
{
	const struct thread_options *o = &td->o;
	uint64_t share = 0, rest = 0;
	struct ironmap_job job;
	struct fio_file *f;
	unsigned int i;

	if (!check_layout(td))
		return 1;
	job = job_of(td);
	if (!o->fill_device && !o->size_percent && o->nr_files) {
		share = o->size / o->nr_files;
		rest = (o->size - share * o->nr_files) / td_min_bs(td);
	}
	for_each_file(td, f, i) {
		struct ironmap_layout layout = {
			.piece = td_max_bs(td), .fill = fill, .job = td,
			.content = content_of(td), .create = o->allow_create,
		};
		int exists = 0, error = get_file_size(td, f, &exists);

		if (error)
			return fail_setup(td, error);
		if (o->file_size_low)
			layout.size = o->file_size_low;
		else if (share)
			layout.size = share + (i < rest ? td_min_bs(td) : 0) + get_start_offset(td, f);
		if (o->file_append && exists)
			layout.content = IRONMAP_GROWS;
		if (exists && layout.size <= f->real_file_size)
			continue;
		error = ironmap_fio_lay_out(&job, f->file_name, &layout);
		if (error)
			return fail_setup(td, error);
		if (layout.size > f->real_file_size)
			f->real_file_size = layout.size;
	}
	return 0;
}

static int init(struct thread_data *td)
{
	struct ironmap_job job;

	if (!check_layout(td))
		return EINVAL;
	job = job_of(td);
	td->io_ops_data = ironmap_fio_open_job(&job);
	if (!td->io_ops_data)
		return EINVAL;
	/* No request will be in flight, so fio must record the time before it submits. */
	if (!ironmap_fio_buffer(td->io_ops_data, 0))
		td->flags |= (unsigned long long) FIO_SYNCIO << TD_ENG_FLAG_SHIFT;
	return 0;
}

/* Requests in flight own their memory, so the engine provides it. fio has filled its own memory already. */
static int post_init(struct thread_data *td)
{
	unsigned int i;

	for (i = 0; i < td->o.iodepth; i++) {
		struct io_u *io_u = td->io_u_all.io_us[i];
		void *memory = ironmap_fio_buffer(td->io_ops_data, i);

		if (!memory || !io_u->buf)
			continue;
		if (td_write(td))
			memcpy(memory, io_u->buf, td_max_bs(td));
		io_u->buf = memory;
	}
	return 0;
}

static void cleanup(struct thread_data *td)
{
	int error;

	if (!is_same_layout(td) || !td->io_ops_data)
		return;
	error = ironmap_fio_close_job(td->io_ops_data);
	if (error)
		td_verror(td, error, "close");
	td->io_ops_data = NULL;
}

static int open_file(struct thread_data *td, struct fio_file *f)
{
	int error = EIO;
	uint64_t file = ironmap_fio_open_file(td->io_ops_data, f->file_name, &error);

	if (!file) {
		td_verror(td, error, "open");
		return 1;
	}
	FILE_SET_ENG_DATA(f, (void *) (uintptr_t) file);
	return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f)
{
	ironmap_fio_close_file(td->io_ops_data, (uintptr_t) FILE_ENG_DATA(f));
	FILE_SET_ENG_DATA(f, NULL);
	return 0;
}

static int unlink_file(struct thread_data *td, struct fio_file *f)
{
	struct ironmap_job job;

	if (!is_same_layout(td))
		return EINVAL;
	job = job_of(td);
	return ironmap_fio_unlink(&job, f->file_name);
}

static void end(struct io_u *io_u, const struct ironmap_end *end)
{
	io_u->error = end->error;
	io_u->resid = end->error ? 0 : io_u->xfer_buflen - end->done;
}

/*
 * Records the time at which a request was issued. For a synchronous engine fio does this before the call. For others it does this after
 * queue() has returned, so that a request that completed in queue() would take no time.
 */
static void issue(struct thread_data *td, struct io_u *io_u)
{
	if (td_ioengine_flagged(td, FIO_SYNCIO) || !fio_fill_issue_time(td))
		return;
	fio_gettime(&io_u->issue_time, NULL);
	/* fio's logs of requests need the time. */
	if (td->o.read_iolog_file)
		td->last_issue = io_u->issue_time;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct ironmap_request request = {
		.memory = io_u->xfer_buf, .len = io_u->xfer_buflen, .pos = io_u->offset,
		.file = (uintptr_t) FILE_ENG_DATA(io_u->file), .index = io_u->index,
	};
	struct ironmap_end done;

	fio_ro_check(td, io_u);
	issue(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		request.op = IRONMAP_READ;
		break;
	case DDIR_WRITE:
		request.op = IRONMAP_WRITE;
		break;
	case DDIR_TRIM:
		request.op = IRONMAP_TRIM;
		break;
	case DDIR_SYNC:
		request.op = IRONMAP_SYNC;
		break;
	default:
		/* A sync of a range syncs the whole file. */
		request.op = IRONMAP_DATASYNC;
	}
	switch (ironmap_fio_queue(td->io_ops_data, &request, &done)) {
	case IRONMAP_QUEUED:
		return FIO_Q_QUEUED;
	case IRONMAP_BUSY:
		return FIO_Q_BUSY;
	default:
		if (ddir_sync(io_u->ddir))
			done.done = io_u->xfer_buflen;
		end(io_u, &done);
		if (io_u->error)
			td_verror(td, io_u->error, "xfer");
		return FIO_Q_COMPLETED;
	}
}

static int commit(struct thread_data *td)
{
	return -ironmap_fio_commit(td->io_ops_data);
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
	return ironmap_fio_reap(td->io_ops_data, min, max);
}

static struct io_u *event(struct thread_data *td, int number)
{
	struct ironmap_end done = ironmap_fio_end(td->io_ops_data, number);
	struct io_u *io_u = td->io_u_all.io_us[done.index];

	end(io_u, &done);
	return io_u;
}

static struct ioengine_ops ops = {
	.name		= "ironmap",
	.version	= FIO_IOOPS_VERSION,
	/* Memory is aligned (RAWIO); names are not paths of the host (DISKLESSIO); a queue belongs to its thread (NO_OFFLOAD). */
	.flags		= FIO_RAWIO | FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_ASYNCIO_SYNC_TRIM |
			  FIO_ASYNCIO_SETS_ISSUE_TIME | FIO_NO_OFFLOAD,
	.setup		= setup,
	.init		= init,
	.post_init	= post_init,
	.queue		= queue,
	.commit		= commit,
	.getevents	= getevents,
	.event		= event,
	.cleanup	= cleanup,
	.open_file	= open_file,
	.close_file	= close_file,
	.unlink_file	= unlink_file,
	.get_file_size	= engine_get_file_size,
	.options	= options,
	.option_struct_size = sizeof(struct options),
};

void *ironmap_fio_ops(void)
{
	return &ops;
}
