/* A stand-in for the driver's libnvidia-ml.so.1, for machines without a GPU.
 *
 * GPU 0 knows everything. GPU 1 is older: it has no MIG, NVLink, ECC, energy or PCIe counters, says
 * so (NVML_ERROR_NOT_SUPPORTED), and its temperature sensor is broken (NVML_ERROR_UNKNOWN).
 * The layouts are those of nvml.h. What the environment variable FAKE_NVML says:
 *   mismatch     the kernel's driver is of another version: nothing can be asked
 *   unloaded     the driver is not loaded
 *   lost         GPU 1 has fallen off the bus
 *   old          the library has no throttle reasons, and an earlier list of processes
 *
 * Numbers in files of the folder FAKE_NVML_FOLDER, where there are any, say what GPU 0 does now:
 *   temperature  in degrees, instead of 64
 *   temperature1 of GPU 1, whose sensor then is not broken
 *   ecc          uncorrected errors of its memory, instead of 1
 *   xid          each time that the number changes, that error is reported
 *   pid          who uses it, instead of the process that asks
 *   use          in percent, instead of 87
 *   power        in milliwatts, instead of 350500
 *   energy       its counter in millijoules, instead of 1234500
 *   throttled    for want of power, its counter in nanoseconds, instead of 2500000000
 *   sm_clock     in megahertz, instead of 1410; memory_clock instead of 2619
 *   pcie_received, pcie_sent      in KB/s, instead of 2048 and 1024
 *   nvlink_received, nvlink_sent  counters in KiB, instead of 4000 and 3000
 *   hang         whoever asks gets no answer, as long as the file is there
 *   lost         GPU 1 has fallen off the bus, as long as the file is there
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7, UNLOADED = 9,
       TIMEOUT = 10, NO_FUNCTION = 13,
       LOST = 15, MISMATCH = 18, UNKNOWN = 999 };
#define MIB (1024ULL * 1024ULL)

typedef struct {
    int index, is_part, is_full;
    const char *name, *uuid;
    unsigned long long memory;
    unsigned major, minor, generation, width, clock, max_clock, memory_clock, power, limit;
} Gpu;

static Gpu gpus[] = {
    {0, 0, 1, "Fake H100", "GPU-11111111-2222-3333-4444-555555555555", 81559 * MIB, 9, 0, 5, 16,
     1410, 1980, 2619, 350500, 700000},
    {1, 0, 0, "Fake RTX 2080", "GPU-66666666-7777-8888-9999-000000000000", 8192 * MIB, 7, 5, 3, 8,
     300, 1710, 405, 20000, 215000},
};
static Gpu part = {0, 1, 0, "Fake H100 MIG 1g.10gb", "MIG-12345678-1234-1234-1234-123456789012",
                   10240 * MIB, 9, 0, 5, 16, 1410, 1980, 2619, 0, 0};

static int is_mode(const char *mode) {
    const char *found = getenv("FAKE_NVML");
    return found != NULL && strcmp(found, mode) == 0;
}

/* The number in a file of the folder; without the file, the other one. */
static long told(const char *name, long otherwise) {
    const char *folder = getenv("FAKE_NVML_FOLDER");
    char path[4096];
    if (folder == NULL) return otherwise;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) return otherwise;
    if (fscanf(file, "%ld", &otherwise) != 1) otherwise = 0;
    fclose(file);
    return otherwise;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return is_mode("mismatch") ? MISMATCH : is_mode("unloaded") ? UNLOADED : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == UNKNOWN ? "Unknown Error" : "an error of the fake library";
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "550.54.15");
    return OK;
}
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12040; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    while (told("hang", -1) != -1) usleep(10000);
    *count = 2;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index > 1) return INVALID;
    if (index == 1 && (is_mode("lost") || told("lost", -1) != -1)) return LOST;
    *gpu = &gpus[index];
    return OK;
}
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, "%s", gpu->name);
    return OK;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, "%s", gpu->uuid);
    return OK;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, unsigned long long *total_free_used) {
    total_free_used[0] = gpu->memory;
    total_free_used[1] = gpu->memory / 4 * 3;
    total_free_used[2] = gpu->memory / 4;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    *major = (int)gpu->major;
    *minor = (int)gpu->minor;
    return OK;
}

#define NUMBER(function, expression)                     \
    int function(Gpu *gpu, unsigned *value) {            \
        *value = (expression);                           \
        return OK;                                       \
    }
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gpu->is_full ? gpu->generation : 1)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gpu->generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, gpu->width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, gpu->index < 2 ? 16 : 0)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, gpu->limit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu->is_full ? gpu->limit : 250000)
NUMBER(nvmlDeviceGetPowerUsage, gpu->is_full ? (unsigned)told("power", gpu->power) : gpu->power)

#define FULL(function, type, expression)                 \
    int function(Gpu *gpu, type *value) {                \
        if (!gpu->is_full) return UNSUPPORTED;           \
        *value = (expression);                           \
        return OK;                                       \
    }
FULL(nvmlDeviceGetPcieReplayCounter, unsigned, 7)
FULL(nvmlDeviceGetMaxMigDeviceCount, unsigned, 2)
FULL(nvmlDeviceGetTotalEnergyConsumption, unsigned long long,
     (unsigned long long)told("energy", 1234500))

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *now, unsigned *pending) {
    *now = *pending = 1;
    return gpu->is_full ? OK : UNSUPPORTED;
}
int nvmlDeviceGetEccMode(Gpu *gpu, unsigned *now, unsigned *pending) {
    *now = *pending = 1;
    return gpu->is_full ? OK : UNSUPPORTED;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Gpu **found) {
    (void)gpu;
    *found = &part;
    return index == 1 ? OK : NOT_FOUND;
}
int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *is_active) {
    *is_active = link != 3;
    return !gpu->is_full ? UNSUPPORTED : link < 18 ? OK : INVALID;
}
int nvmlDeviceGetClockInfo(Gpu *gpu, int type, unsigned *megahertz) {
    *megahertz = type == 1 ? gpu->clock : gpu->memory_clock;
    if (gpu->is_full) *megahertz = (unsigned)told(type == 1 ? "sm_clock" : "memory_clock", *megahertz);
    return OK;
}
int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int type, unsigned *megahertz) {
    (void)type;
    *megahertz = gpu->max_clock;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *reasons) {
    *reasons = gpu->is_full ? 0x4 | 0x20 : 0x1;
    return is_mode("old") ? NO_FUNCTION : OK;
}
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *celsius) {
    (void)sensor;
    long celsius_of_1 = told("temperature1", -1);
    *celsius = (unsigned)(gpu->is_full ? told("temperature", 64) : celsius_of_1);
    return gpu->is_full || celsius_of_1 != -1 ? OK : UNKNOWN;
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned *gpu_memory) {
    gpu_memory[0] = gpu->is_full ? (unsigned)told("use", 87) : 0;
    gpu_memory[1] = 40;
    return OK;
}
int nvmlDeviceGetViolationStatus(Gpu *gpu, int policy, unsigned long long *reference_violation) {
    reference_violation[0] = 1;
    reference_violation[1] = policy == 0 ? (unsigned long long)told("throttled", 2500000000) : 0;
    return gpu->is_full && policy < 2 ? OK : UNSUPPORTED;
}
int nvmlDeviceGetPcieThroughput(Gpu *gpu, int counter, unsigned *kib) {
    long sent = told("pcie_sent", 1024), received = told("pcie_received", 2048);
    *kib = (unsigned)(counter == 1 ? received : sent);
    return gpu->is_full ? OK : UNSUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int type, int counter, unsigned long long *count) {
    (void)counter;
    *count = type == 0 ? 5 : (unsigned long long)told("ecc", 1);
    return gpu->is_full ? OK : UNSUPPORTED;
}
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    int result;
    unsigned long long value;
} Field;
int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].result = gpu->is_full && fields[i].scope == 0xFFFFFFFFU ? OK : UNSUPPORTED;
        long sent = told("nvlink_sent", 3000), received = told("nvlink_received", 4000);
        fields[i].value = (unsigned long long)(fields[i].field == 138 ? sent : received);
    }
    return OK;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, part;
} Process;
static int processes(Gpu *gpu, unsigned *count, Process *found) {
    unsigned room = *count;
    *count = gpu->is_full ? 1 : 0;
    if (room < *count) return INSUFFICIENT;
    if (*count) found[0] = (Process){(unsigned)told("pid", getpid()), 512 * MIB, 0, 0};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found) {
    return is_mode("old") ? NO_FUNCTION : processes(gpu, count, found);
}
int nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *found) {
    return processes(gpu, count, found);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found) {
    (void)gpu, (void)found;
    *count = 0;
    return OK;
}

typedef struct {
    Gpu *gpu;
    unsigned long long type, data;
    unsigned instance, part;
} Event;
static long reported = -1;
int nvmlEventSetCreate(long **set) {
    *set = &reported;
    reported = told("xid", -1);
    return OK;
}
int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, long *set) {
    (void)types, (void)set;
    return gpu->is_full ? OK : UNSUPPORTED;
}
int nvmlEventSetWait_v2(long *set, Event *event, unsigned milliseconds) {
    (void)milliseconds;
    long xid = told("xid", -1);
    if (xid == *set) return TIMEOUT;
    *event = (Event){&gpus[0], 8, (unsigned long long)(*set = xid), 0, 0};
    return OK;
}

typedef struct {
    unsigned version, is_supported;
} Support;
typedef struct {
    unsigned id;
    int result;
    double value;
    const char *words[3];
} Metric;
typedef struct {
    unsigned version, count;
    void *before, *now;
    Metric metrics[1];
} Metrics;
int nvmlGpmQueryDeviceSupport(Gpu *gpu, Support *support) {
    support->is_supported = (unsigned)gpu->is_full;
    return OK;
}
int nvmlGpmSampleAlloc(void **sample) {
    *sample = malloc(1);
    return OK;
}
int nvmlGpmSampleGet(Gpu *gpu, void *sample) {
    (void)gpu, (void)sample;
    return OK;
}
int nvmlGpmMetricsGet(Metrics *asked) {
    asked->metrics[0].result = asked->metrics[0].id == 10 ? OK : UNSUPPORTED; /* 10 = DRAM */
    asked->metrics[0].value = 42.0;
    return OK;
}
