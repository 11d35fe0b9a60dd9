// Checks that a database whose tables ironmap reads has the contents that were written to it, and those that RocksDB's own file system reads.
//
//   equal DIR URI RAW [forbid]   DIR is a new directory on the file system to test; RAW is 1 if tables must be read from the device;
//                                forbid: the kernel refuses io_uring to the process
//
// All random numbers have the seed 20261129.
#include <dirent.h>
#include <ironmap.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include "../src/ironmap_fs.h"

namespace {

using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::DB;
using rocksdb::FileSystem;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteOptions;

using Model = std::map<std::string, std::string>;

constexpr int kKeys = 6000;
constexpr int kReaders = 8;
constexpr unsigned kSeed = 20261129;

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "equal: " << what << '\n';
  std::exit(1);
}

void Check(const Status& status, const std::string& what) {
  if (!status.ok()) {
    Fail(what + ": " + status.ToString());
  }
}

void Check(bool holds, const std::string& what) {
  if (!holds) {
    Fail(what);
  }
}

std::string Key(int number) {
  std::string digits = std::to_string(number);
  return "key" + std::string(8 - digits.size(), '0') + digits;
}

// A value of 0 to 3000 bytes, so that blocks have many lengths and positions.
std::string Value(std::mt19937& random) {
  std::string value(random() % 3001, '\0');
  for (char& byte : value) {
    byte = static_cast<char>(random());
  }
  return value;
}

// A database with two columns. The contents of each column must be those of its model.
struct Database {
  std::unique_ptr<DB> db;
  std::vector<ColumnFamilyHandle*> columns;

  Database(const std::string& path, rocksdb::Env* env) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.create_missing_column_families = true;
    options.env = env;
    options.use_direct_reads = true;
    options.use_direct_io_for_flush_and_compaction = true;
    options.write_buffer_size = 2 << 20;
    options.target_file_size_base = 2 << 20;
    options.compression = rocksdb::kNoCompression;
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(64 << 10);
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    DB* opened = nullptr;
    const std::vector<ColumnFamilyDescriptor> names = {{"default", options}, {"second", options}};
    Check(DB::Open(options, path, names, &columns, &opened), "open");
    db.reset(opened);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() {
    for (ColumnFamilyHandle* column : columns) {
      db->DestroyColumnFamilyHandle(column);
    }
    Check(db->Close(), "close");
  }
};

// Writes random values and deletes some, so that the merge of several tables has to choose versions.
void Write(Database& database, int column, Model& model, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = Key(static_cast<int>(random() % kKeys));
      if (random() % 8 == 0) {
        Check(database.db->Delete(WriteOptions(), database.columns[column], key), "delete");
        model.erase(key);
      } else {
        const std::string value = Value(random);
        Check(database.db->Put(WriteOptions(), database.columns[column], key, value), "put");
        model[key] = value;
      }
    }
    Check(database.db->Flush(rocksdb::FlushOptions(), database.columns[column]), "flush");
  }
}

void Compact(Database& database, int column) {
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  Check(database.db->CompactRange(options, database.columns[column], nullptr, nullptr), "compact");
}

void CheckGet(Database& database, int column, const Model& model, int number) {
  const std::string key = Key(number);
  std::string value;
  const Status status = database.db->Get(ReadOptions(), database.columns[column], key, &value);
  const auto expected = model.find(key);
  if (expected == model.end()) {
    Check(status.IsNotFound(), "found " + key + ", which was deleted: " + status.ToString());
  } else {
    Check(status, "get " + key);
    Check(value == expected->second, "another value of " + key);
  }
}

// MultiGet of 32 keys reads several blocks of a table by one MultiRead.
void CheckMultiGet(Database& database, int column, const Model& model, std::mt19937& random) {
  constexpr size_t kCount = 32;
  std::vector<std::string> keys(kCount);
  std::vector<Slice> slices(kCount);
  std::vector<PinnableSlice> values(kCount);
  std::vector<Status> statuses(kCount);
  const unsigned first = random() % kKeys;
  for (size_t i = 0; i < kCount; ++i) {
    keys[i] = Key(static_cast<int>((first + i * (1 + first % 50)) % kKeys));
    slices[i] = keys[i];
  }
  database.db->MultiGet(ReadOptions(), database.columns[column], kCount, slices.data(), values.data(), statuses.data());
  for (size_t i = 0; i < kCount; ++i) {
    const auto expected = model.find(keys[i]);
    const bool equal = expected == model.end() ? statuses[i].IsNotFound()
                                               : statuses[i].ok() && Slice(values[i]) == Slice(expected->second);
    Check(equal, "multiget of " + keys[i] + ": " + statuses[i].ToString());
  }
}

template <typename Position>
void CheckEntry(const rocksdb::Iterator& iterator, Position expected, Position end) {
  Check(expected != end, "the iterator has one more key: " + iterator.key().ToString());
  Check(iterator.key() == Slice(expected->first), "the iterator has another key: " + iterator.key().ToString());
  Check(iterator.value() == Slice(expected->second), "the iterator has another value of " + expected->first);
}

// Reads a whole column in both directions.
void CheckScan(Database& database, int column, const Model& model) {
  ReadOptions options;
  options.fill_cache = false;
  std::unique_ptr<rocksdb::Iterator> iterator(database.db->NewIterator(options, database.columns[column]));
  auto forward = model.begin();
  for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
    CheckEntry(*iterator, forward, model.end());
    ++forward;
  }
  Check(iterator->status(), "iterate");
  Check(forward == model.end(), "the iterator ends too early");
  auto backward = model.rbegin();
  for (iterator->SeekToLast(); iterator->Valid(); iterator->Prev()) {
    CheckEntry(*iterator, backward, model.rend());
    ++backward;
  }
  Check(iterator->status(), "iterate backwards");
  Check(backward == model.rend(), "the backward iterator ends too early");
}

void CheckAll(Database& database, const Model models[2]) {
  std::mt19937 random(kSeed);
  Check(database.db->VerifyChecksum(), "checksums of blocks");
  for (int column = 0; column < 2; ++column) {
    for (int number = 0; number < kKeys; ++number) {
      CheckGet(database, column, models[column], number);
    }
    for (int i = 0; i < 100; ++i) {
      CheckMultiGet(database, column, models[column], random);
    }
    CheckScan(database, column, models[column]);
  }
}

// Makes the kernel refuse io_uring to this thread and to the threads that it starts, as the filters of containers do.
void ForbidRings() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof *filter, filter};
  Check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  Check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
  Check(syscall(SYS_io_uring_setup, 1, nullptr) < 0 && errno == EPERM, "the kernel does not refuse io_uring");
}

// The number of open tables of this process whose name was deleted. Their space is in use until they are closed.
int DeletedTables() {
  int count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  Check(directory != nullptr, "cannot open /proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char target[4096];
    const ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target);
    const std::string name(target, length < 0 ? 0 : static_cast<size_t>(length));
    count += name.find(".sst (deleted)") != std::string::npos;
  }
  closedir(directory);
  return count;
}

// Threads read the first column while the main thread writes and compacts the second one, which closes and deletes tables that they read.
// The kernel refuses io_uring to one thread.
void CheckConcurrent(Database& database, Model models[2]) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      if (reader == 0) {
        ForbidRings();
      }
      std::mt19937 random(kSeed + static_cast<unsigned>(reader));
      while (!stop.load()) {
        CheckGet(database, 0, models[0], static_cast<int>(random() % kKeys));
        CheckMultiGet(database, 0, models[0], random);
        // The values change, so only errors matter.
        std::string value;
        const Status status = database.db->Get(ReadOptions(), database.columns[1], Key(static_cast<int>(random() % kKeys)), &value);
        Check(status.ok() || status.IsNotFound(), "get beside writes: " + status.ToString());
      }
    });
  }
  for (unsigned round = 0; round < 2; ++round) {
    Write(database, 1, models[1], kSeed + 100 + round);
    Compact(database, 1);
    // The same contents in new tables.
    Compact(database, 0);
  }
  stop.store(true);
  for (std::thread& reader : readers) {
    reader.join();
  }
}

// Reads in a thread that can have no queue, because the process has too many. The pool must read for it.
void CheckWithoutQueue(Database& database, const Model models[2]) {
  ironmap_host* host = nullptr;
  Check(ironmap_host_open("psync", &host) == 0, "a host");
  std::vector<ironmap_queue*> queues(1 << 20);
  size_t count = 0;
  int result = 0;
  while (count < queues.size() && (result = ironmap_host_queue(host, 1, &queues[count])) == 0) {
    ++count;
  }
  Check(result == -EMFILE, "the queues are not exhausted");
  std::thread([&] { CheckAll(database, models); }).join();
  for (size_t i = 0; i < count; ++i) {
    Check(ironmap_queue_free(queues[i]) == 0, "free a queue");
  }
  Check(ironmap_host_close(host) == 0, "close a host");
}

// The inodes on which the kernel has a lease of this process.
std::set<uint64_t> LeasedInodes() {
  std::ifstream locks("/proc/locks");
  std::set<uint64_t> inodes;
  for (std::string line; std::getline(locks, line);) {
    // For example: 1: LEASE  ACTIVE    READ  1234 07:00:12 0 EOF
    std::istringstream fields(line);
    std::string number, kind, state, access, place;
    pid_t process = 0;
    if (fields >> number >> kind >> state >> access >> process >> place && kind == "LEASE" && process == getpid()) {
      inodes.insert(std::stoull(place.substr(place.rfind(':') + 1)));
    }
  }
  return inodes;
}

// Checks that ironmap has a lease of each table if it can read the table from the device, and none otherwise. Reads each table also by the
// interface of files: ranges that are not aligned to sectors, and ranges at and past the end of the file.
void CheckTables(const std::string& path, FileSystem& fs, bool raw) {
  std::vector<std::string> names;
  Check(fs.GetChildren(path, rocksdb::IOOptions(), &names, nullptr), "list");
  int tables = 0;
  for (const std::string& name : names) {
    if (!Slice(name).ends_with(".sst")) {
      continue;
    }
    ++tables;
    const std::string table = path + "/" + name;
    struct stat attributes {};
    Check(stat(table.c_str(), &attributes) == 0, "stat of " + table);
    rocksdb::FileOptions direct;
    direct.use_direct_reads = true;
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    std::unique_ptr<rocksdb::FSRandomAccessFile> kernel;
    Check(fs.NewRandomAccessFile(table, direct, &file, nullptr), "open " + table);
    Check(FileSystem::Default()->NewRandomAccessFile(table, rocksdb::FileOptions(), &kernel, nullptr), "open " + table);
    std::vector<char> read(8192);
    std::vector<char> expected(8192);
    const uint64_t size = static_cast<uint64_t>(attributes.st_size);
    for (const uint64_t at : {uint64_t{1}, size - 100, size + 5000}) {
      Slice result;
      Slice same;
      Check(file->Read(at, 5001, rocksdb::IOOptions(), &result, read.data(), nullptr), "read of " + table);
      Check(kernel->Read(at, 5001, rocksdb::IOOptions(), &same, expected.data(), nullptr), "read by the kernel");
      Check(result == same, "other bytes at " + std::to_string(at) + " of " + table);
    }
    const bool leased = LeasedInodes().count(attributes.st_ino) != 0;
    Check(leased == raw, table + (leased ? " has a lease" : " has no lease"));
  }
  Check(tables > 1, "there are too few tables");
}

void CheckDirectory(const std::string& path, const std::string& uri, bool raw) {
  std::shared_ptr<FileSystem> fs;
  Check(FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &fs), uri);
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(fs);
  Model models[2];
  {
    Database database(path, env.get());
    Write(database, 0, models[0], kSeed);
    Write(database, 1, models[1], kSeed + 1);
    CheckAll(database, models);
    Compact(database, 0);
    CheckAll(database, models);
    CheckConcurrent(database, models);
    CheckAll(database, models);
    CheckWithoutQueue(database, models);
  }
  // Threads of compactions that have read these tables still run, and still have their queues.
  Check(DeletedTables() == 0, std::to_string(DeletedTables()) + " deleted tables are still open");
  CheckTables(path, *fs, raw);
  Database database(path, rocksdb::Env::Default());
  CheckAll(database, models);
}

}  // namespace

int main(int argc, char** argv) {
  const bool forbid = argc == 5 && std::string(argv[4]) == "forbid";
  Check(argc == 4 || forbid, "the arguments are: DIR URI RAW [forbid]");
  const bool raw = std::string(argv[3]) == "1";
  if (forbid) {
    ForbidRings();
  }
  std::shared_ptr<FileSystem> fs;
  const Status refused = FileSystem::CreateFromString(rocksdb::ConfigOptions(), "ironmap://unknown", &fs);
  Check(refused.IsInvalidArgument(), "a wrong URI: " + refused.ToString());
  CheckDirectory(argv[1], argv[2], raw);
  std::cout << "equal: " << argv[1] << " by " << argv[2] << (raw ? ": read from the device" : ": read by the kernel")
            << (forbid ? ", without io_uring\n" : "\n");
  return 0;
}
