/* Preloaded into a plant's processes: steps their wall clock and slows their fsync, at an instant,
 * while they run. What it does is read from a shared page, so that another process decides.
 * The monotonic clock is never touched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct page { int64_t wall_offset_ns; int64_t fsync_delay_us; };
static volatile struct page *told;

__attribute__((constructor)) static void open_page(void) {
    const char *path = getenv("TAKT_NEMESIS_PAGE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof(struct page), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) told = at;
}

static int64_t offset_ns(clockid_t id) {
    return told && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) ? told->wall_offset_ns : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int code = (int)syscall(SYS_clock_gettime, id, now);
    int64_t offset = offset_ns(id);
    if (code == 0 && offset != 0) {
        int64_t ns = now->tv_sec * 1000000000LL + now->tv_nsec + offset;
        if (ns < 0) ns = 0;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (into) *into = at.tv_sec;
    return at.tv_sec;
}

static void delay(void) {
    if (told && told->fsync_delay_us > 0) usleep((useconds_t)told->fsync_delay_us);
}

int fsync(int fd) {
    delay();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    delay();
    return (int)syscall(SYS_fdatasync, fd);
}
