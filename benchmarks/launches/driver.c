/* A CUDA driver that does nothing: what Triton's launcher calls, with answers of a GPU of compute capability 9.0.
   `launch_count` returns how many kernels were launched. */
#include <stddef.h>
#include <stdint.h>

static long launched = 0;
long launch_count(void) { return launched; }

enum { MAX_SHARED_MEMORY = 97, MAX_THREADS = 1, WARP_SIZE = 10, PROCESSORS = 16, MAJOR = 75, MINOR = 76 };

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case MAJOR: *value = 9; break;
    case MINOR: *value = 0; break;
    case WARP_SIZE: *value = 32; break;
    case PROCESSORS: *value = 132; break;
    case MAX_THREADS: *value = 1024; break;
    case MAX_SHARED_MEMORY: *value = 232448; break;
    default: *value = 65536;
  }
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 1 << 20; return 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuGetErrorString(int error, const char **text) { *text = "no error"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_SUCCESS"; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)2; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)3; return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = attribute ? 0 : 1024; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) { launched++; return 0; }
int cuOccupancyMaxActiveClusters(int *count, void *function, const void *config) { *count = 1; return 0; }
int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) { *(uint64_t *)data = pointer; return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cuTensorMapEncodeIm2col(void) { return 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
