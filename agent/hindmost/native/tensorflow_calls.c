/* What TensorFlow does inside its compiled step, where Python does not come by: waiting for input, and handing tensors to
 * Horovod and getting them back.
 *
 * Functions of libtensorflow_framework that other libraries call: they hand everything on as it was, and a version of
 * TensorFlow that names them otherwise is simply not seen.
 */
#define _GNU_SOURCE
#include "horovod_cycles.h"

#include <dlfcn.h>

/* The function of that name in, or behind, the library that calls it. TensorFlow's are not visible to everybody. */
static void *behind(const void *caller, const char *name) {
    Dl_info info;
    void *found = dlsym(RTLD_NEXT, name);
    if (found || !dladdr(caller, &info) || !info.dli_fname)
        return found;
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

#define HM_BEHIND(result, name, ...)                                                                                   \
    static result (*real)(__VA_ARGS__);                                                                                \
    if (__builtin_expect(!real, 0))                                                                                    \
        real = (result(*)(__VA_ARGS__))behind(__builtin_return_address(0), name);

#define HM_GET_NEXT "_ZN10tensorflow7metrics27RecordTFDataGetNextDurationEm"
#define HM_INPUT "_ZNK10tensorflow15OpKernelContext5inputEi"

HM_EXPORT void hm_tf_get_next(uint64_t took_us) __asm__(HM_GET_NEXT);
HM_EXPORT const void *hm_tf_input(const void *context, int index) __asm__(HM_INPUT);

/* Where the counts are. */
HM_EXPORT const struct hm_cycles *hindmost_tensorflow(void) { return &hm_cycles; }

/* metrics::RecordTFDataGetNextDuration: a step has its batch, and waited so long for it. */
void hm_tf_get_next(uint64_t took_us) {
    HM_BEHIND(void, HM_GET_NEXT, uint64_t)
    __atomic_fetch_add(&hm_cycles.fetching_us, took_us, __ATOMIC_RELAXED);
    __atomic_fetch_add(&hm_cycles.fetched, 1, __ATOMIC_RELEASE);
    if (real)
        real(took_us);
}

/* OpKernelContext::input: Horovod's kernels ask for a tensor when it has been computed, and enqueue it. */
const void *hm_tf_input(const void *context, int index) {
    HM_BEHIND(const void *, HM_INPUT, const void *, int)
    if (hm_of_horovod(__builtin_return_address(0))) {
        __atomic_store_n(&hm_cycles.handed_ns, hm_now(), __ATOMIC_RELAXED);
        __atomic_fetch_add(&hm_cycles.handed, 1, __ATOMIC_RELEASE);
    }
    return real(context, index);
}

/* OpKernelContext::SetStatus: Horovod says so of each tensor when it has been reduced. The name of absl's namespace is
 * part of its own. */
#define HM_SET_STATUS(of, function)                                                                                    \
    HM_EXPORT void function(void *context, const void *status)                                                         \
        __asm__("_ZN10tensorflow15OpKernelContext9SetStatusERKN" of "6StatusE");                                       \
    void function(void *context, const void *status) {                                                                 \
        HM_BEHIND(void, "_ZN10tensorflow15OpKernelContext9SetStatusERKN" of "6StatusE", void *, const void *)          \
        if (hm_of_horovod(__builtin_return_address(0)))                                                                \
            __atomic_store_n(&hm_cycles.reduced_ns, hm_now(), __ATOMIC_RELAXED);                                       \
        real(context, status);                                                                                         \
    }

HM_SET_STATUS("4absl12lts_20220623", hm_tf_status_2022)
HM_SET_STATUS("4absl12lts_20230125", hm_tf_status_2023)
HM_SET_STATUS("4absl12lts_20230802", hm_tf_status_2023b)
