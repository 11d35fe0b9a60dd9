#include "ironmap_fs.h"

#include <fcntl.h>
#include <ironmap.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <rocksdb/utilities/object_registry.h>

namespace ironmap_rocksdb {
namespace {

using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// The error of a call of ironmap in this thread that has returned an errno with a minus sign.
IOStatus Failed(const std::string& path, ptrdiff_t result) {
  struct ironmap_failure failure {};
  const bool known = ironmap_failure(nullptr, &failure, sizeof failure) == 0 && failure.error == -result;
  const std::string reason = known ? failure.message : "errno " + std::to_string(-result);
  switch (-result) {
    case ENOENT:
      return IOStatus::PathNotFound(path, reason);
    case EUCLEAN:
      return IOStatus::Corruption(path, reason);
    default:
      return IOStatus::IOError(path, reason);
  }
}

// The host of all file systems of the process, and the pool that opens tables and carries out batches.
//
// RocksDB reads a table in any thread, and closes it in another one. A file of a queue belongs to one thread, so a thread that is idle would
// keep deleted tables open. A file of a pool belongs to no thread: it is opened once, all threads read it, and it is closed at once.
//
// A single read uses the queue of its thread, so it crosses to no other thread. It is one `pread` with io_uring and with psync, and both were
// equally fast. So the library chooses the engine, and single reads need no second host with psync.
//
// A batch is passed to the pool, whose threads keep its reads in flight together. By `ironmap_read_many_on`, batches were 1.0 to 1.2 times as
// fast with 4 and 16 threads. But with one thread on a loaded machine, a third of the runs took about ten times as long as by the pool. A pool
// of psync was as fast as one of io_uring, and took 1.5 times the processor time.
class Host {
 public:
  // The host is never closed. RocksDB has threads that run until the process ends, and only they can free their queues.
  static IOStatus Get(const Host** host) {
    static std::mutex mutex;
    static const Host* opened = nullptr;
    const std::lock_guard<std::mutex> lock(mutex);
    if (opened == nullptr) {
      std::unique_ptr<Host> made(new Host);
      const int result = made->Start();
      if (result < 0) {
        return Failed("ironmap", result);
      }
      opened = made.release();
    }
    *host = opened;
    return IOStatus::OK();
  }

  int Open(const std::string& path, int flags, ironmap_pool_file** file) const {
    return ironmap_pool_open(pool_, path.c_str(), flags, 0, file);
  }

  ptrdiff_t Read(ironmap_pool_file* file, void* memory, size_t len, uint64_t pos) const {
    ironmap_queue* const queue = Queue();
    return queue != nullptr ? ironmap_pread_on(queue, file, memory, len, pos)
                            : ironmap_pool_pread(file, memory, len, pos);
  }

 private:
  Host() = default;

  int Start() {
    int result = ironmap_host_open(nullptr, &host_);
    if (result == 0) {
      // The library starts two threads, or up to 16 if a thread waits for each read, as without io_uring.
      result = ironmap_host_pool(host_, 0, 0, &pool_);
      if (result < 0) {
        ironmap_host_close(host_);
      }
    }
    return result;
  }

  // The queue of this thread, which its first read makes and the end of the thread frees. Returns NULL if the thread cannot have a queue, for
  // example because there are too many. The thread does not try again, because each attempt would delay a read.
  ironmap_queue* Queue() const {
    // Plain data stay valid until the thread ends. A destructor of another thread_local object may read after `end` has freed the queue.
    thread_local bool tried = false;
    thread_local ironmap_queue* queue = nullptr;
    struct End {
      ~End() { ironmap_queue_free(std::exchange(queue, nullptr)); }
    };
    if (!tried) {
      tried = true;
      // A queue without a ring serves single reads too, and the library makes one if the descriptors are exhausted.
      if (ironmap_host_queue(host_, 1, &queue) == 0) {
        thread_local End end;
      }
    }
    return queue;
  }

  ironmap_host* host_ = nullptr;
  ironmap_pool* pool_ = nullptr;
};

// An open table. The file of the wrapped file system has the identity of the table and the alignment for direct reads.
class Table : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  Table(std::unique_ptr<FSRandomAccessFile> base, std::string path, const Host& host, ironmap_pool_file* file)
      : FSRandomAccessFileOwnerWrapper(std::move(base)), path_(std::move(path)), host_(host), file_(file) {}

  ~Table() override { ironmap_pool_close(file_); }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return Done(host_.Read(file_, scratch, n, offset), scratch, result);
  }

  IOStatus MultiRead(FSReadRequest* requests, size_t count, const IOOptions&, IODebugContext*) override {
    std::vector<ironmap_pool_read> reads(count);
    for (size_t i = 0; i < count; ++i) {
      reads[i] = {requests[i].scratch, requests[i].len, requests[i].offset, 0};
    }
    const int called = ironmap_pool_read_many(file_, reads.data(), count, sizeof(ironmap_pool_read));
    if (called < 0) {
      return Failed(path_, called);
    }
    for (size_t i = 0; i < count; ++i) {
      requests[i].status = Done(reads[i].result, requests[i].scratch, &requests[i].result);
    }
    return IOStatus::OK();
  }

 private:
  IOStatus Done(ptrdiff_t count, char* scratch, Slice* result) const {
    if (count < 0) {
      *result = Slice();
      return Failed(path_, count);
    }
    *result = Slice(scratch, static_cast<size_t>(count));
    return IOStatus::OK();
  }

  const std::string path_;
  const Host& host_;
  ironmap_pool_file* const file_;
};

class IronmapFileSystem : public rocksdb::FileSystemWrapper {
 public:
  IronmapFileSystem(const std::shared_ptr<FileSystem>& base, const Options& options, const Host& host)
      : FileSystemWrapper(base),
        flags_(O_RDONLY | (options.assume_no_dedupe ? IRONMAP_O_ASSUME_NO_DEDUPE : 0)),
        host_(host) {}

  static const char* kClassName() { return "ironmap"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* file, IODebugContext* debug) override {
    std::unique_ptr<FSRandomAccessFile> base;
    const IOStatus opened = target()->NewRandomAccessFile(path, options, &base, debug);
    if (!opened.ok() || !options.use_direct_reads || !Slice(path).ends_with(".sst")) {
      *file = std::move(base);
      return opened;
    }
    ironmap_pool_file* table = nullptr;
    const int result = host_.Open(path, flags_, &table);
    if (result < 0) {
      return Failed(path, result);
    }
    *file = std::make_unique<Table>(std::move(base), path, host_, table);
    return IOStatus::OK();
  }

 private:
  const int flags_;
  const Host& host_;
};

// The URI "ironmap://" stands for the default options, and "ironmap://assume_no_dedupe" for the promise.
FileSystem* FromUri(const std::string& uri, std::unique_ptr<FileSystem>* made, std::string* error) {
  const std::string rest = uri.substr(uri.find("://") + 3);
  Options options;
  options.assume_no_dedupe = rest == "assume_no_dedupe";
  if (!rest.empty() && !options.assume_no_dedupe) {
    *error = "the URI is neither ironmap:// nor ironmap://assume_no_dedupe";
    return nullptr;
  }
  const Host* host = nullptr;
  const IOStatus opened = Host::Get(&host);
  if (!opened.ok()) {
    *error = opened.ToString();
    return nullptr;
  }
  *made = std::make_unique<IronmapFileSystem>(FileSystem::Default(), options, *host);
  return made->get();
}

// Runs when the library is loaded, also by LD_PRELOAD.
[[maybe_unused]] const bool registered = [] {
  const auto pattern = rocksdb::ObjectLibrary::PatternEntry("ironmap", false).AddSeparator("://", false);
  rocksdb::ObjectLibrary::Default()->AddFactory<FileSystem>(pattern, FromUri);
  return true;
}();

}  // namespace

IOStatus NewFileSystem(const std::shared_ptr<FileSystem>& base, const Options& options, std::shared_ptr<FileSystem>* made) {
  const Host* host = nullptr;
  const IOStatus opened = Host::Get(&host);
  if (opened.ok()) {
    *made = std::make_shared<IronmapFileSystem>(base, options, *host);
  }
  return opened;
}

}  // namespace ironmap_rocksdb
