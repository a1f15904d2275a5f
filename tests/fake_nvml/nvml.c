/* A stand-in for the driver's libnvidia-ml.so.1, for machines without a GPU.
 *
 * GPU 0 knows everything. GPU 1 is older: it has no MIG, NVLink, ECC, energy or PCIe counters, says
 * so (NVML_ERROR_NOT_SUPPORTED), and its temperature sensor is broken (NVML_ERROR_UNKNOWN).
 * The layouts are those of nvml.h. What the environment variable FAKE_NVML says:
 *   mismatch     the kernel's driver is of another version: nothing can be asked
 *   unloaded     the driver is not loaded
 *   lost         GPU 1 has fallen off the bus
 *   old          the library has no throttle reasons
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, UNLOADED = 9, NO_FUNCTION = 13,
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
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index > 1) return INVALID;
    if (index == 1 && is_mode("lost")) return LOST;
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
NUMBER(nvmlDeviceGetPowerUsage, gpu->power)

#define FULL(function, type, expression)                 \
    int function(Gpu *gpu, type *value) {                \
        if (!gpu->is_full) return UNSUPPORTED;           \
        *value = (expression);                           \
        return OK;                                       \
    }
FULL(nvmlDeviceGetPcieReplayCounter, unsigned, 7)
FULL(nvmlDeviceGetMaxMigDeviceCount, unsigned, 2)
FULL(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 1234500)

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
    *celsius = 64;
    return gpu->is_full ? OK : UNKNOWN;
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned *gpu_memory) {
    gpu_memory[0] = gpu->is_full ? 87 : 0;
    gpu_memory[1] = 40;
    return OK;
}
int nvmlDeviceGetViolationStatus(Gpu *gpu, int policy, unsigned long long *reference_violation) {
    reference_violation[0] = 1;
    reference_violation[1] = policy == 0 ? 2500000000ULL : 0;
    return gpu->is_full && policy < 2 ? OK : UNSUPPORTED;
}
int nvmlDeviceGetPcieThroughput(Gpu *gpu, int counter, unsigned *kib) {
    *kib = counter == 1 ? 2048 : 1024; /* 1 = received */
    return gpu->is_full ? OK : UNSUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int type, int counter, unsigned long long *count) {
    (void)counter;
    *count = type == 0 ? 5 : 1;
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
        fields[i].value = fields[i].field == 138 ? 3000 : 4000; /* 138 = transmitted, KiB */
    }
    return OK;
}
