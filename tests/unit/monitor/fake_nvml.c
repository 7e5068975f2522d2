/* One imitated GPU behind NVML's C interface, for the real pynvml. FAKE_NVML_HANG: calls never return. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static void maybe_hang(void) { if (getenv("FAKE_NVML_HANG")) for (;;) pause(); }
ret nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
ret nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(ret r) { return r == 3 ? "Not Supported" : "error"; }
ret nvmlDeviceGetCount_v2(unsigned *n) { maybe_hang(); *n = 1; return 0; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { (void)i; *d = (void *)1; return 0; }
ret nvmlDeviceGetUUID(void *d, char *t, unsigned n) { (void)d; strncpy(t, "GPU-fake", n); return 0; }
ret nvmlDeviceGetName(void *d, char *t, unsigned n) { (void)d; strncpy(t, "Fake L4", n); return 0; }
ret nvmlDeviceGetTemperature(void *d, int s, unsigned *t) { (void)d; (void)s; *t = 91; return 0; }
ret nvmlDeviceGetClockInfo(void *d, int k, unsigned *c) { (void)d; (void)k; *c = 1200; return 0; }
ret nvmlDeviceGetMaxClockInfo(void *d, int k, unsigned *c) { (void)d; (void)k; *c = 2040; return 0; }
ret nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *m) { (void)d; *m = 0x49; return 0; }
ret nvmlDeviceGetMemoryInfo(void *d, memory_t *m) { (void)d; m->total = 24ULL << 30; m->used = 6ULL << 30; m->free = 18ULL << 30; return 0; }
ret nvmlDeviceGetTotalEccErrors(void *d, int k, int c, unsigned long long *n) { (void)d; (void)k; (void)c; (void)n; return 3; }
ret nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) { (void)d; memset(p, 0, sizeof *p); strcpy(p->busId, "00000000:3B:00.0"); return 0; }
ret nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, void *infos) { (void)d; (void)infos; *n = 0; return 0; }
