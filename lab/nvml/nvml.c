/* A libnvidia-ml.so.1 for machines without a GPU: what it answers stands in a file.
 *
 *     gpus 8             how many there are
 *     0 ecc 1            GPU 0: uncorrected ECC errors; lost, pending, failed, links (a bit mask of
 *                        18), link_errors, replays, throttle, recovery likewise
 *     event 1 0 8 79     events by rising number: GPU, type (8: Xid, 2: double-bit ECC), its data
 *     hang 1             no call returns
 *
 * The file is read anew at each call: $UNICRON_LAB_NVML, or /run/unicron-nvml.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_GPUS 32
#define LINKS 18
enum { SUCCESS = 0, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMED_OUT = 10, GPU_LOST = 15 };
enum { EVENT_POLL_MICROSECONDS = 20000 };

typedef struct { char number; } device;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci;
typedef struct {
    device *gpu;
    unsigned long long type, data;
    unsigned instance, compute;
} event;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type, result;
    union { unsigned u; unsigned long long ull; } value;
} field;

static device devices[MOST_GPUS];
static long seen_event = -1;

static const char *state_path(void) {
    const char *path = getenv("UNICRON_LAB_NVML");
    return path ? path : "/run/unicron-nvml";
}

static FILE *open_state(void) { return fopen(state_path(), "r"); }

/* Waiting for events costs next to nothing while the file does not change. */
static int has_changed(void) {
    static struct stat known;
    struct stat now;
    if (stat(state_path(), &now)) return 0;
    int same = now.st_size == known.st_size && now.st_mtim.tv_sec == known.st_mtim.tv_sec &&
               now.st_mtim.tv_nsec == known.st_mtim.tv_nsec;
    known = now;
    return !same;
}

/* The last value that the file gives `key` of `gpu`; of the machine itself for gpu -1. */
static unsigned long long value(int gpu, const char *key, unsigned long long otherwise) {
    char line[128], name[32];
    int number;
    unsigned long long given;
    FILE *file = open_state();
    if (!file) return otherwise;
    while (fgets(line, sizeof line, file)) {
        if (gpu >= 0 && sscanf(line, "%d %31s %llu", &number, name, &given) == 3) {
            if (number == gpu && !strcmp(name, key)) otherwise = given;
        } else if (gpu < 0 && sscanf(line, "%31s %llu", name, &given) == 2) {
            if (!strcmp(name, key)) otherwise = given;
        }
    }
    fclose(file);
    return otherwise;
}

/* The first event above `after`; its number, or `after` where there is none. */
static long next_event(long after, event *found) {
    char line[128];
    long number, best = after;
    int gpu;
    unsigned long long type, data;
    FILE *file = open_state();
    if (!file) return after;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "event %ld %d %llu %llu", &number, &gpu, &type, &data) == 4)
            if (number > after && (best == after || number < best) && gpu >= 0 && gpu < MOST_GPUS) {
                best = number;
                *found = (event){&devices[gpu], type, data, ~0u, ~0u};
            }
    fclose(file);
    return best;
}

static int number_of(device *gpu) { return (int)(gpu - devices); }

/* Every question about a GPU goes through here. */
static int state(device *gpu) {
    if (gpu < devices || gpu >= devices + MOST_GPUS) return BAD_ARGUMENT;
    while (value(-1, "hang", 0)) sleep(1);
    return value(number_of(gpu), "lost", 0) ? GPU_LOST : SUCCESS;
}

static unsigned long long of(device *gpu, const char *key, unsigned long long otherwise) {
    return value(number_of(gpu), key, otherwise);
}

int nvmlInitWithFlags(unsigned flags) {
    event ignored;
    (void)flags;
    for (long next; (next = next_event(seen_event, &ignored)) != seen_event;) seen_event = next;
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == GPU_LOST ? "GPU is lost" : "an error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)value(-1, "gpus", 0);
    if (*count > MOST_GPUS) *count = MOST_GPUS;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **gpu) {
    if (index >= value(-1, "gpus", 0) || index >= MOST_GPUS) return BAD_ARGUMENT;
    *gpu = &devices[index];
    return state(*gpu);
}
int nvmlDeviceGetPciInfo_v3(device *gpu, pci *info) {
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)(number_of(gpu) + 1) * 16;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device *gpu, unsigned type, unsigned counter, unsigned long long *count) {
    (void)counter;
    *count = type == 1 ? of(gpu, "ecc", 0) : 0;
    return state(gpu);
}
int nvmlDeviceGetRemappedRows(device *gpu, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = (unsigned)of(gpu, "pending", 0);
    *failed = (unsigned)of(gpu, "failed", 0);
    return state(gpu);
}
int nvmlDeviceGetNvLinkState(device *gpu, unsigned link, unsigned *active) {
    if (link >= LINKS) return BAD_ARGUMENT;
    *active = of(gpu, "links", (1u << LINKS) - 1) >> link & 1;
    return state(gpu);
}
int nvmlDeviceGetNvLinkErrorCounter(device *gpu, unsigned link, unsigned counter, unsigned long long *count) {
    *count = link == 0 && counter == 0 ? of(gpu, "link_errors", 0) : 0;
    return state(gpu);
}
int nvmlDeviceGetPcieReplayCounter(device *gpu, unsigned *count) {
    *count = (unsigned)of(gpu, "replays", 0);
    return state(gpu);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *gpu, unsigned long long *reasons) {
    *reasons = of(gpu, "throttle", 0);
    return state(gpu);
}
int nvmlDeviceGetFieldValues(device *gpu, int count, field *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].field == 230 ? SUCCESS : NOT_SUPPORTED;
        fields[i].value.ull = 0;
        fields[i].value.u = (unsigned)of(gpu, "recovery", 0);
    }
    return state(gpu);
}

int nvmlEventSetCreate(void **set) {
    *set = devices;
    return SUCCESS;
}
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(device *gpu, unsigned long long *types) {
    *types = 0x0B;
    return state(gpu);
}
int nvmlDeviceRegisterEvents(device *gpu, unsigned long long types, void *set) {
    (void)types, (void)set;
    return state(gpu);
}
int nvmlEventSetWait_v2(void *set, event *found, unsigned milliseconds) {
    (void)set;
    for (long waited = 0; waited <= (long)milliseconds * 1000; waited += EVENT_POLL_MICROSECONDS) {
        if (has_changed() || waited == 0) {
            while (value(-1, "hang", 0)) sleep(1);
            long next = next_event(seen_event, found);
            if (next != seen_event) {
                seen_event = next;
                return SUCCESS;
            }
        }
        usleep(EVENT_POLL_MICROSECONDS);
    }
    return TIMED_OUT;
}
