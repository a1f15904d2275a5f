/* For LD_PRELOAD: what this process's clocks show more than those of its machine.
 *
 * Two whole numbers in the file FAKE_CLOCK, whenever it is changed: seconds for the wall clock, and
 * for the clock since boot, as after a sleep. Without a file the wall clock is 100 s ahead. Other
 * clocks are not touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void shifts(long *wall, long *boot) {
    const char *path = getenv("FAKE_CLOCK");
    *wall = path == NULL ? 100 : 0;
    *boot = 0;
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    if (file == NULL) return;
    if (fscanf(file, "%ld %ld", wall, boot) != 2) *wall = *boot = 0;
    fclose(file);
}

int clock_gettime(clockid_t id, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *) = NULL;
    long wall = 0, boot = 0;
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, found);
    if (result != 0 || (id != CLOCK_REALTIME && id != CLOCK_BOOTTIME)) return result;
    shifts(&wall, &boot);
    found->tv_sec += id == CLOCK_REALTIME ? wall : boot;
    return result;
}
