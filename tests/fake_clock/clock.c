/* For LD_PRELOAD: this process's wall clock is 100 s ahead; its other clocks are not touched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *) = NULL;
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, found);
    if (result == 0 && id == CLOCK_REALTIME) found->tv_sec += 100;
    return result;
}
