#include "ironmap_fs.h"

#include <fcntl.h>
#include <ironmap.h>

#include <cerrno>
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

// The threads that read, shared by a file system and its open tables.
//
// RocksDB reads a table in any thread, and closes it in another one. A queue of ironmap and its files belong to one thread, so a queue for
// each thread needs a handle for each thread and table. A thread that is idle cannot close its handles. In a test, the threads of compactions
// kept the deleted tables open that they had read, and the space of these tables was not freed. Each thread would also open each table,
// which costs a lease and a flush of the table. Files of a pool are closed at once. A single read by the pool takes about 6 µs more
// processor time than by a queue of the thread (16 threads), because it crosses to a thread of the pool and back.
class Pool {
 public:
  static IOStatus Start(std::shared_ptr<Pool>* started) {
    const std::shared_ptr<Pool> pool(new Pool);
    int result = ironmap_host_open(nullptr, &pool->host_);
    if (result == 0) {
      result = ironmap_host_pool(pool->host_, 0, 0, &pool->pool_);
    }
    if (result < 0) {
      return Failed("ironmap", result);
    }
    *started = pool;
    return IOStatus::OK();
  }

  // All tables are closed, because they own the pool too.
  ~Pool() {
    ironmap_pool_free(pool_);
    ironmap_host_close(host_);
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int Open(const std::string& path, int flags, ironmap_pool_file** file) const {
    return ironmap_pool_open(pool_, path.c_str(), flags, 0, file);
  }

 private:
  Pool() = default;

  ironmap_host* host_ = nullptr;
  ironmap_pool* pool_ = nullptr;
};

// An open table. The file of the wrapped file system has the identity of the table and the alignment for direct reads.
class Table : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  Table(std::unique_ptr<FSRandomAccessFile> base, std::string path, std::shared_ptr<Pool> pool, ironmap_pool_file* file)
      : FSRandomAccessFileOwnerWrapper(std::move(base)), path_(std::move(path)), pool_(std::move(pool)), file_(file) {}

  ~Table() override { ironmap_pool_close(file_); }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return Done(ironmap_pool_pread(file_, scratch, n, offset), scratch, result);
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
  const std::shared_ptr<Pool> pool_;
  ironmap_pool_file* const file_;
};

class IronmapFileSystem : public rocksdb::FileSystemWrapper {
 public:
  IronmapFileSystem(const std::shared_ptr<FileSystem>& base, const Options& options, std::shared_ptr<Pool> pool)
      : FileSystemWrapper(base),
        flags_(O_RDONLY | (options.assume_no_dedupe ? IRONMAP_O_ASSUME_NO_DEDUPE : 0)),
        pool_(std::move(pool)) {}

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
    const int result = pool_->Open(path, flags_, &table);
    if (result < 0) {
      return Failed(path, result);
    }
    *file = std::make_unique<Table>(std::move(base), path, pool_, table);
    return IOStatus::OK();
  }

 private:
  const int flags_;
  const std::shared_ptr<Pool> pool_;
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
  std::shared_ptr<Pool> pool;
  const IOStatus started = Pool::Start(&pool);
  if (!started.ok()) {
    *error = started.ToString();
    return nullptr;
  }
  *made = std::make_unique<IronmapFileSystem>(FileSystem::Default(), options, pool);
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
  std::shared_ptr<Pool> pool;
  const IOStatus started = Pool::Start(&pool);
  if (started.ok()) {
    *made = std::make_shared<IronmapFileSystem>(base, options, pool);
  }
  return started;
}

}  // namespace ironmap_rocksdb
