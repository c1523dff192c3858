/* Gives a process another wall clock, and a disk that hangs. It stands before the C library (LD_PRELOAD); what it does
 * at the moment stands in a small file that DISTURB_CONTROL names and that a test changes meanwhile (control.py).
 *
 * Clock: CLOCK_REALTIME is read with an offset, the steady clocks are as they are. Waits until a time of the wall clock
 * end when that clock gets there, as the kernel's would. Times of files are the kernel's own, without the offset.
 *
 * Disk: what changes or syncs something below a folder, or only what syncs, hangs until a time of CLOCK_MONOTONIC;
 * reads go on, as they do from the page cache. What had begun before is not stopped. `forgetful` is a planted mistake: what is written is
 * answered as if it had been, and is not there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#endif
#ifndef RWF_SYNC
#define RWF_SYNC 4
#endif

enum { SECOND_NS = 1000000000, SLICE_NS = 50000000 };

/* The same as in control.py. */
static struct control {
    _Atomic int64_t offset_ns, stalled_until_ns;
    _Atomic uint64_t forgetful, syncs_only, clock_reads, stalled_calls, under_way;
    char folder[PATH_MAX];
} *control;

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
        fprintf(stderr, "disturb: there is no %s\n", name);
        abort();
    }
    return found;
}

__attribute__((constructor)) static void begin_disturbing(void)
{
    const char *path = getenv("DISTURB_CONTROL");
    if (!path)
        return;
    int file = REAL(open)(path, O_RDWR | O_CLOEXEC);
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        fprintf(stderr, "disturb: cannot use %s\n", path);
        abort();
    }
    close(file);
    control = page;
}

/* Clock */

static int64_t nanoseconds(const struct timespec *time)
{
    return (int64_t)time->tv_sec * SECOND_NS + time->tv_nsec;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){ns / SECOND_NS, ns % SECOND_NS};
}

static int64_t offset_ns(void)
{
    return control ? atomic_load_explicit(&control->offset_ns, memory_order_relaxed) : 0;
}

static int64_t read_ns(clockid_t clock)
{
    struct timespec now;
    REAL(clock_gettime)(clock, &now);
    return nanoseconds(&now);
}

static int64_t wall_ns(void)
{
    int64_t offset = offset_ns();
    if (offset)
        atomic_fetch_add_explicit(&control->clock_reads, 1, memory_order_relaxed);
    return read_ns(CLOCK_REALTIME) + offset;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return REAL(clock_gettime)(clock, now);
    *now = timespec_of(wall_ns());
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int64_t ns = wall_ns();
    (void)zone;
    *now = (struct timeval){ns / SECOND_NS, ns % SECOND_NS / 1000};
    return 0;
}

time_t time(time_t *now)
{
    time_t seconds = wall_ns() / SECOND_NS;
    if (now)
        *now = seconds;
    return seconds;
}

int timespec_get(struct timespec *now, int base)
{
    if (base != TIME_UTC)
        return 0;
    *now = timespec_of(wall_ns());
    return base;
}

/* Until when the kernel is to wait, in its own time: a slice, so that a jump is noticed meanwhile. */
static struct timespec slice_of(int64_t until_ns)
{
    int64_t real_ns = read_ns(CLOCK_REALTIME), left_ns = until_ns - offset_ns() - real_ns;
    return timespec_of(real_ns + (left_ns < 0 ? 0 : left_ns < SLICE_NS ? left_ns : SLICE_NS));
}

static int is_over(int64_t until_ns)
{
    return read_ns(CLOCK_REALTIME) + offset_ns() >= until_ns;
}

/* Which clock the condition was made for is not told, but times of the steady one are small. A slice that ends counts
 * as a wake-up without a reason, which POSIX allows: waiting on would miss what was signalled between two slices. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    if (until->tv_sec < SECOND_NS)
        return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
    int64_t until_ns = nanoseconds(until);
    struct timespec slice = slice_of(until_ns);
    int result = pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &slice);
    return result == ETIMEDOUT && !is_over(until_ns) ? 0 : result;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    int64_t until_ns = nanoseconds(until);
    for (;;) {
        struct timespec slice = slice_of(until_ns);
        int result = sem_clockwait(semaphore, CLOCK_REALTIME, &slice);
        if (!result || errno != ETIMEDOUT || is_over(until_ns))
            return result;
    }
}

long syscall(long number, ...)
{
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int at = 0; at < 6; at++)
        given[at] = va_arg(rest, long);
    va_end(rest);
    if (number != SYS_futex || !(given[1] & FUTEX_CLOCK_REALTIME) || !given[3])
        return REAL(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
    int64_t until_ns = nanoseconds((struct timespec *)given[3]);
    struct timespec slice = slice_of(until_ns);
    long result = REAL(syscall)(number, given[0], given[1], given[2], &slice, given[4], given[5]);
    if (result == -1 && errno == ETIMEDOUT && !is_over(until_ns))
        errno = EINTR;
    return result;
}

/* Disk */

static int below_folder(const char *path)
{
    size_t size = strlen(control->folder);
    return size && !strncmp(path, control->folder, size) && (path[size] == '/' || !path[size] || path[size] == ' ');
}

static int file_below_folder(int file)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return below_folder(path);
}

static int disturbed(void)
{
    return control && (atomic_load(&control->forgetful) || atomic_load(&control->stalled_until_ns));
}

static void stall(void)
{
    if (read_ns(CLOCK_MONOTONIC) >= atomic_load(&control->stalled_until_ns))
        return;
    atomic_fetch_add(&control->stalled_calls, 1);
    atomic_fetch_add(&control->under_way, 1);
    int64_t left_ns;
    while ((left_ns = atomic_load(&control->stalled_until_ns) - read_ns(CLOCK_MONOTONIC)) > 0) {
        struct timespec slice = timespec_of(left_ns < SLICE_NS ? left_ns : SLICE_NS);
        nanosleep(&slice, NULL);
    }
    atomic_fetch_sub(&control->under_way, 1);
}

/* Hangs while the disk does; whether the call is then to be forgotten. */
static int forgotten(int file, int sync)
{
    int error = errno;
    int forget = 0;
    if (disturbed() && file_below_folder(file)) {
        forget = atomic_load(&control->forgetful) != 0;
        if (sync || !atomic_load(&control->syncs_only))
            stall();
    }
    errno = error;
    return forget;
}

static void hang(const char *path)
{
    char full[PATH_MAX];
    int error = errno;
    if (disturbed() && !atomic_load(&control->syncs_only) && path && (*path == '/' ? below_folder(path) : getcwd(full, sizeof full) && below_folder(full)))
        stall();
    errno = error;
}

static ssize_t bytes_of(const struct iovec *data, int parts)
{
    ssize_t size = 0;
    for (int part = 0; part < parts; part++)
        size += data[part].iov_len;
    return size;
}

static ssize_t skipped(int file, ssize_t size)
{
    lseek(file, size, SEEK_CUR);
    return size;
}

ssize_t write(int file, const void *data, size_t size)
{
    return forgotten(file, 0) ? skipped(file, size) : REAL(write)(file, data, size);
}

ssize_t writev(int file, const struct iovec *data, int parts)
{
    return forgotten(file, 0) ? skipped(file, bytes_of(data, parts)) : REAL(writev)(file, data, parts);
}

#define PWRITE(name, type) \
    ssize_t name(int file, const void *data, size_t size, type offset) \
    { \
        return forgotten(file, 0) ? (ssize_t)size : REAL(name)(file, data, size, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, type) \
    ssize_t name(int file, const struct iovec *data, int parts, type offset) \
    { \
        return forgotten(file, 0) ? bytes_of(data, parts) : REAL(name)(file, data, parts, offset); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, type) \
    ssize_t name(int file, const struct iovec *data, int parts, type offset, int flags) \
    { \
        int sync = flags & (RWF_DSYNC | RWF_SYNC); \
        return forgotten(file, sync) ? bytes_of(data, parts) : REAL(name)(file, data, parts, offset, flags); \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

#define SYNC(name) \
    int name(int file) \
    { \
        return forgotten(file, 1) ? 0 : REAL(name)(file); \
    }
SYNC(fsync)
SYNC(fdatasync)
SYNC(syncfs)

int sync_file_range(int file, off64_t offset, off64_t size, unsigned flags)
{
    return forgotten(file, 1) ? 0 : REAL(sync_file_range)(file, offset, size, flags);
}

#define FTRUNCATE(name, type) \
    int name(int file, type size) \
    { \
        forgotten(file, 0); \
        return REAL(name)(file, size); \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define POSIX_FALLOCATE(name, type) \
    int name(int file, type offset, type size) \
    { \
        forgotten(file, 0); \
        return REAL(name)(file, offset, size); \
    }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
            hang(path); \
        } \
        return REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int rename(const char *path, const char *other)
{
    hang(path);
    return REAL(rename)(path, other);
}

int unlink(const char *path)
{
    hang(path);
    return REAL(unlink)(path);
}
