// A libcuda.so.1 that computes nothing and writes down what it is asked, one line per call, to $FAKE_LOG.
// $FAKE_FAILS names a function that fails, $FAKE_MAJOR and $FAKE_SMS are the GPU's, $FAKE_SIZES the bytes of
// each kernel parameter. Device memory is the host's.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned grid[3], block[3], shared_memory;
    void *stream;
    struct { int id, pad, value[16]; } *attributes;
    unsigned count;
} config_t;

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int done(const char *function, const char *format, ...)
{
    char line[4096];
    const char *fails = getenv("FAKE_FAILS"), *log = getenv("FAKE_LOG");
    va_list list;
    va_start(list, format);
    int length = snprintf(line, sizeof line, "%s ", function);
    length += vsnprintf(line + length, sizeof line - length, format, list);
    va_end(list);
    FILE *file = log ? fopen(log, "a") : NULL;
    if (file) fprintf(file, "%s\n", line), fclose(file);
    return fails && !strcmp(fails, function);
}

int cuInit(unsigned flags) { return done("cuInit", "%u", flags); }
int cuGetErrorName(int status, const char **name) { *name = "FAKE_ERROR"; return status < 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return ordinal != 0; }
int cuDeviceGetAttribute(int *value, int which, int device)
{
    const int major = number("FAKE_MAJOR", 9), sms = number("FAKE_SMS", 132);
    *value = which == 75 ? major : which == 16 ? sms : 0;
    return device != 40;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)64; return done("retain", "%d", device); }
int cuDevicePrimaryCtxRelease_v2(int device) { return done("release", "%d", device); }
int cuCtxPushCurrent_v2(void *context) { return done("push", "%zu", (size_t)context); }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)64; return done("pop", ""); }
int cuCtxSetCurrent(void *context) { return done("current", "%zu", (size_t)context); }
int cuModuleUnload(void *module) { return done("unload", "%s", (char *)module); }
int cuModuleLoadData(void **module, const void *image)
{
    *module = strdup(image);
    return done("cuModuleLoadData", "%s", (const char *)image);
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = strdup(name);
    return done("function", "%s %s", (char *)module, name);
}
int cuFuncSetAttribute(void *function, int which, int value)
{
    return done("attribute", "%s %d %d", (char *)function, which, value);
}
int cuTensorMapEncodeTiled(uint64_t *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill)
{
    char text[512], *to = text;
    map[0] = (uintptr_t)address;
    for (uint32_t i = 0; i < rank; i++) to += sprintf(to, " %zu", (size_t)dims[i]);
    for (uint32_t i = 0; i + 1 < rank; i++) to += sprintf(to, " %zu", (size_t)strides[i]);
    for (uint32_t i = 0; i < rank; i++) to += sprintf(to, " %u", box[i]);
    for (uint32_t i = 0; i < rank; i++) to += sprintf(to, " %u", steps[i]);
    return done("cuTensorMapEncodeTiled", "%d %u %zu%s %d %d %d %d", type, rank, (size_t)address, text, interleave,
                swizzle, promotion, fill);
}
int cuLaunchKernelEx(const config_t *c, void *function, void **values, void **extra)
{
    char text[2048] = "", *to = text;
    char *sizes = strdup(getenv("FAKE_SIZES") ? getenv("FAKE_SIZES") : ""), *state = NULL;
    for (char *s = strtok_r(sizes, ",", &state); s; s = strtok_r(NULL, ",", &state), values++) {
        *to++ = ' ';
        for (int i = 0; i < atoi(s); i++) to += sprintf(to, "%02x", ((unsigned char *)*values)[i]);
    }
    free(sizes);
    return done("cuLaunchKernelEx", "%s %u %u %u %u %u %u %u %zu %u %d %d %d%s", (char *)function, c->grid[0],
                c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared_memory,
                (size_t)c->stream, c->count, c->attributes ? c->attributes->id : 0,
                c->attributes ? c->attributes->value[0] : 0, extra != NULL, text);
}
int cuMemAlloc_v2(unsigned long long *address, size_t size)
{
    *address = (uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
    return done("alloc", "%zu", size);
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) { memcpy(to, (void *)from, size); return 0; }
