// A file system of RocksDB that reads table files around the kernel's file system.
#pragma once

#include <memory>

#include <rocksdb/file_system.h>

namespace ironmap_rocksdb {

struct Options {
  // The promise that no program dedupes a table while RocksDB has it open. Without the promise, the kernel reads tables on XFS with reflink.
  bool assume_no_dedupe = false;
};

// Makes a file system that reads table files (*.sst) as host files of ironmap, and passes everything else to `base`.
//
// A table is read by ironmap if RocksDB opens it for direct reads (`DBOptions::use_direct_reads`). Otherwise `base` reads it: RocksDB then
// expects the page cache, and reads ahead less. If ironmap cannot read a table from its device, the kernel reads it; this is no error.
//
// All file systems of the process share one host of ironmap, which is not closed before the process ends. Each thread that reads has a queue.
//
// Returns an error if the host or its threads cannot be started.
rocksdb::IOStatus NewFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, const Options& options,
                                std::shared_ptr<rocksdb::FileSystem>* made);

}  // namespace ironmap_rocksdb
