/* Writes down every change to files below one folder, with its data, as a process makes it: for LD_PRELOAD.
 *
 * POWER_ROOT     the folder, an absolute path without links
 * POWER_LOG      where records are appended; e2e/power/recording.py reads them
 * POWER_COUNTER  a file that all processes map: the last number given out, whether all is to stand still, how many calls
 *                are under way
 *
 * Each change has a number before it and another behind it.
 * Two changes whose numbers do not overlap happened in the order of their numbers. What is written past these functions
 * (stdio, memory maps, system calls by hand) is not seen; the suite compares files afterwards to notice that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#endif
#ifndef RWF_SYNC
#define RWF_SYNC 4
#endif

enum kind {
    OPENED = 1, WRITTEN, TRUNCATED, ALLOCATED, SYNCED, RENAMED, LINKED, UNLINKED, MADE_DIRECTORY, REMOVED_DIRECTORY,
    SYNCED_ALL, UNKNOWN
};
enum { DURABLE = 1 };
enum { DESCRIPTORS = 1 << 16 };

struct record {
    uint32_t magic, kind;
    uint64_t begin, end, inode;
    int64_t offset, size;
    uint32_t flags, path_size, other_path_size, reserved;
    uint64_t data_size;
} __attribute__((packed));

static char root[PATH_MAX];
static size_t root_size;
static int log_file = -1;
static struct {
    _Atomic uint64_t number, frozen, under_way;
} *shared;
static uint64_t inodes[DESCRIPTORS];   /* 0: not below the root */
static int open_flags[DESCRIPTORS];

#define REAL(name) \
    ({ \
        static __typeof__(&name) found; \
        if (!found) \
            found = (__typeof__(&name))real_function(#name); \
        found; \
    })

static void *real_function(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "recorder: there is no %s\n", name);
        abort();
    }
    return found;
}

__attribute__((constructor)) static void begin_recording(void)
{
    const char *folder = getenv("POWER_ROOT"), *path = getenv("POWER_LOG"), *numbers = getenv("POWER_COUNTER");
    if (!folder || !path || !numbers || strlen(folder) >= sizeof root)
        return;
    int page = REAL(open)(numbers, O_RDWR | O_CLOEXEC);
    log_file = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    shared = page < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    if (log_file < 0 || shared == MAP_FAILED) {
        fprintf(stderr, "recorder: cannot use %s and %s\n", path, numbers);
        abort();
    }
    close(page);
    strcpy(root, folder);
    root_size = strlen(root);
}

static uint64_t number(void)
{
    return shared ? atomic_fetch_add(&shared->number, 1) + 1 : 0;
}

/* The number before a change. Once all is to stand still nothing begins any more, so that no change is made which the
 * log lacks when the process is killed. */
static uint64_t entered(void)
{
    if (!shared)
        return 0;
    atomic_fetch_add(&shared->under_way, 1);
    if (atomic_load(&shared->frozen)) {
        atomic_fetch_sub(&shared->under_way, 1);
        for (;;)
            pause();
    }
    return number();
}

static void left(uint64_t *begin)
{
    if (*begin)
        atomic_fetch_sub(&shared->under_way, 1);
}

#define BEGIN __attribute__((cleanup(left))) uint64_t begin = entered()

/* Whether a path is the root or below it; then `full` holds it without "./" in front. */
static int below_root(int directory, const char *path, char *full)
{
    if (log_file < 0 || !path)
        return 0;
    if (path[0] == '/') {
        if (snprintf(full, PATH_MAX, "%s", path) >= PATH_MAX)
            return 0;
    } else {
        char base[PATH_MAX], link[64];
        if (directory == AT_FDCWD) {
            if (!getcwd(base, sizeof base))
                return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            ssize_t size = readlink(link, base, sizeof base - 1);
            if (size < 0)
                return 0;
            base[size] = 0;
        }
        if (snprintf(full, PATH_MAX, "%s/%s", base, path) >= PATH_MAX)
            return 0;
    }
    return !strncmp(full, root, root_size) && (full[root_size] == '/' || full[root_size] == 0);
}

static void put(enum kind kind, uint64_t begin, uint64_t inode, int64_t offset, int64_t size, uint32_t flags,
                const char *path, const char *other, const struct iovec *data, int parts, uint64_t data_size)
{
    struct record record = {
        0x52574f50, kind, begin, number(), inode, offset, size, flags,
        path ? strlen(path) : 0, other ? strlen(other) : 0, 0, data_size,
    };
    int error = errno;
    struct iovec all[4] = {
        {&record, sizeof record}, {(void *)path, record.path_size}, {(void *)other, record.other_path_size}, {NULL, 0},
    };
    char *joined = NULL;
    if (data_size) {
        uint64_t at = 0;
        joined = malloc(data_size);
        if (!joined)
            abort();
        for (int part = 0; part < parts && at < data_size; part++) {
            size_t some = data[part].iov_len < data_size - at ? data[part].iov_len : data_size - at;
            memcpy(joined + at, data[part].iov_base, some);
            at += some;
        }
        all[3].iov_base = joined;
        all[3].iov_len = data_size;
    }
    ssize_t wanted = sizeof record + record.path_size + record.other_path_size + data_size;
    if (REAL(writev)(log_file, all, 4) != wanted) {
        fprintf(stderr, "recorder: a record was cut short\n");
        abort();
    }
    free(joined);
    errno = error;
}

static void named(enum kind kind, uint64_t begin, uint64_t inode, const char *path, const char *other)
{
    put(kind, begin, inode, 0, 0, 0, path, other, NULL, 0, 0);
}

/* The inode of an open file below the root, else 0. A number that was closed behind our back and given to another file
 * is noticed by its inode. */
static uint64_t known(int descriptor)
{
    struct stat status;
    if (descriptor < 0 || descriptor >= DESCRIPTORS || !inodes[descriptor])
        return 0;
    int error = errno;
    if (fstat(descriptor, &status) || status.st_ino != inodes[descriptor])
        inodes[descriptor] = 0;
    errno = error;
    return inodes[descriptor];
}

static int opened(int descriptor, uint64_t begin, int flags, int directory, const char *path)
{
    char full[PATH_MAX];
    struct stat status;
    if (descriptor < 0 || descriptor >= DESCRIPTORS)
        return descriptor;
    inodes[descriptor] = 0;
    int error = errno;
    if (below_root(directory, path, full) && !fstat(descriptor, &status)) {
        inodes[descriptor] = status.st_ino;
        open_flags[descriptor] = flags;
        if (flags & (O_CREAT | O_TRUNC))
            put(OPENED, begin, status.st_ino, 0, 0, flags & O_TRUNC, full, NULL, NULL, 0, 0);
        if ((flags & O_TMPFILE) == O_TMPFILE)
            named(UNKNOWN, begin, 0, full, "O_TMPFILE");
    }
    errno = error;
    return descriptor;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        MODE(flags) \
        BEGIN; \
        return opened(REAL(name)(path, flags, mode), begin, flags, AT_FDCWD, path); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) \
    { \
        MODE(flags) \
        BEGIN; \
        return opened(REAL(name)(directory, path, flags, mode), begin, flags, directory, path); \
    }
OPENAT(openat)
OPENAT(openat64)

#define CREAT(name) \
    int name(const char *path, mode_t mode) \
    { \
        BEGIN; \
        return opened(REAL(name)(path, mode), begin, O_CREAT | O_WRONLY | O_TRUNC, AT_FDCWD, path); \
    }
CREAT(creat)
CREAT(creat64)

/* The names are followed; what stdio writes is not. */
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) \
    { \
        BEGIN; \
        FILE *file = REAL(name)(path, mode); \
        int flags = mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT : 0; \
        if (file) \
            opened(fileno(file), begin, flags, AT_FDCWD, path); \
        return file; \
    }
FOPEN(fopen)
FOPEN(fopen64)

static ssize_t written(int file, uint64_t begin, ssize_t result, int64_t offset, int durable, const struct iovec *data,
                       int parts)
{
    uint64_t inode = result > 0 ? known(file) : 0;
    if (inode) {
        int error = errno;
        if (offset < 0)
            offset = lseek(file, 0, SEEK_CUR) - result;
        errno = error;
        durable = durable || open_flags[file] & O_DSYNC;
        put(WRITTEN, begin, inode, offset, result, durable ? DURABLE : 0, NULL, NULL, data, parts, result);
    }
    return result;
}

ssize_t write(int file, const void *data, size_t size)
{
    BEGIN;
    struct iovec part = {(void *)data, size};
    return written(file, begin, REAL(write)(file, data, size), -1, 0, &part, 1);
}

ssize_t writev(int file, const struct iovec *data, int parts)
{
    BEGIN;
    return written(file, begin, REAL(writev)(file, data, parts), -1, 0, data, parts);
}

#define PWRITE(name, type) \
    ssize_t name(int file, const void *data, size_t size, type offset) \
    { \
        BEGIN; \
        struct iovec part = {(void *)data, size}; \
        return written(file, begin, REAL(name)(file, data, size, offset), offset, 0, &part, 1); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, type) \
    ssize_t name(int file, const struct iovec *data, int parts, type offset) \
    { \
        BEGIN; \
        return written(file, begin, REAL(name)(file, data, parts, offset), offset, 0, data, parts); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, type) \
    ssize_t name(int file, const struct iovec *data, int parts, type offset, int flags) \
    { \
        BEGIN; \
        ssize_t result = REAL(name)(file, data, parts, offset, flags); \
        return written(file, begin, result, offset, flags & (RWF_DSYNC | RWF_SYNC), data, parts); \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

static int resized(int file, uint64_t begin, int result, enum kind kind, int64_t offset, int64_t size, int flags)
{
    uint64_t inode = result ? 0 : known(file);
    if (inode)
        put(kind, begin, inode, offset, size, flags, NULL, NULL, NULL, 0, 0);
    return result;
}

#define FTRUNCATE(name, type) \
    int name(int file, type size) \
    { \
        BEGIN; \
        return resized(file, begin, REAL(name)(file, size), TRUNCATED, 0, size, 0); \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define TRUNCATE(name, type) \
    int name(const char *path, type size) \
    { \
        char full[PATH_MAX]; \
        BEGIN; \
        int result = REAL(name)(path, size); \
        if (!result && below_root(AT_FDCWD, path, full)) \
            put(TRUNCATED, begin, 0, 0, size, 0, full, NULL, NULL, 0, 0); \
        return result; \
    }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

#define FALLOCATE(name, type) \
    int name(int file, int mode, type offset, type size) \
    { \
        BEGIN; \
        int result = REAL(name)(file, mode, offset, size); \
        if (mode & ~FALLOC_FL_KEEP_SIZE) \
            return resized(file, begin, result, UNKNOWN, offset, size, mode); \
        return mode ? result : resized(file, begin, result, ALLOCATED, offset, size, 0); \
    }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)

#define POSIX_FALLOCATE(name, type) \
    int name(int file, type offset, type size) \
    { \
        BEGIN; \
        return resized(file, begin, REAL(name)(file, offset, size), ALLOCATED, offset, size, 0); \
    }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define SYNC(name) \
    int name(int file) \
    { \
        BEGIN; \
        return resized(file, begin, REAL(name)(file), SYNCED, 0, 0, 0); \
    }
SYNC(fsync)
SYNC(fdatasync)

int syncfs(int file)
{
    BEGIN;
    int result = REAL(syncfs)(file);
    if (!result && log_file >= 0)
        named(SYNCED_ALL, begin, 0, NULL, NULL);
    return result;
}

static int two_names(enum kind kind, uint64_t begin, int result, int from, const char *path, int to, const char *other)
{
    char full[PATH_MAX], other_full[PATH_MAX];
    int error = errno;
    if (!result && below_root(from, path, full)) {
        if (!below_root(to, other, other_full))
            named(UNKNOWN, begin, 0, full, "moved out of the folder");
        else
            named(kind, begin, 0, full, other_full);
    } else if (!result && below_root(to, other, other_full)) {
        named(UNKNOWN, begin, 0, other_full, "moved into the folder");
    }
    errno = error;
    return result;
}

int rename(const char *path, const char *other)
{
    BEGIN;
    return two_names(RENAMED, begin, REAL(rename)(path, other), AT_FDCWD, path, AT_FDCWD, other);
}

int renameat(int from, const char *path, int to, const char *other)
{
    BEGIN;
    return two_names(RENAMED, begin, REAL(renameat)(from, path, to, other), from, path, to, other);
}

int renameat2(int from, const char *path, int to, const char *other, unsigned flags)
{
    BEGIN;
    int result = REAL(renameat2)(from, path, to, other, flags);
    return two_names(flags > 1 ? UNKNOWN : RENAMED, begin, result, from, path, to, other);
}

int link(const char *path, const char *other)
{
    BEGIN;
    return two_names(LINKED, begin, REAL(link)(path, other), AT_FDCWD, path, AT_FDCWD, other);
}

int linkat(int from, const char *path, int to, const char *other, int flags)
{
    BEGIN;
    return two_names(LINKED, begin, REAL(linkat)(from, path, to, other, flags), from, path, to, other);
}

static int one_name(enum kind kind, uint64_t begin, int result, int directory, const char *path)
{
    char full[PATH_MAX];
    struct stat status;
    int error = errno;
    if (!result && below_root(directory, path, full)) {
        uint64_t inode = kind == MADE_DIRECTORY && !lstat(full, &status) ? status.st_ino : 0;
        named(kind, begin, inode, full, NULL);
    }
    errno = error;
    return result;
}

int unlink(const char *path)
{
    BEGIN;
    return one_name(UNLINKED, begin, REAL(unlink)(path), AT_FDCWD, path);
}

int unlinkat(int directory, const char *path, int flags)
{
    BEGIN;
    int result = REAL(unlinkat)(directory, path, flags);
    return one_name(flags & AT_REMOVEDIR ? REMOVED_DIRECTORY : UNLINKED, begin, result, directory, path);
}

int remove(const char *path)
{
    struct stat status;
    int directory = !lstat(path, &status) && S_ISDIR(status.st_mode);
    return directory ? rmdir(path) : unlink(path);
}

int mkdir(const char *path, mode_t mode)
{
    BEGIN;
    return one_name(MADE_DIRECTORY, begin, REAL(mkdir)(path, mode), AT_FDCWD, path);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    BEGIN;
    return one_name(MADE_DIRECTORY, begin, REAL(mkdirat)(directory, path, mode), directory, path);
}

int rmdir(const char *path)
{
    BEGIN;
    return one_name(REMOVED_DIRECTORY, begin, REAL(rmdir)(path), AT_FDCWD, path);
}
