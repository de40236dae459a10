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

#define HM_SET_OUTPUT "_ZN10tensorflow15OpKernelContext10set_outputEiRKNS_6TensorE"
#define HM_DIM_SIZE "_ZNK10tensorflow15TensorShapeBaseINS_11TensorShapeEE8dim_sizeEi"

/* Of a Tensor, which begins with its shape (TensorShapeRep): where the number of its dimensions is, as a byte. */
enum { HM_DIMENSIONS = 14, HM_UNKNOWN_RANK = 255 };

/* This thread has taken a batch, whose tensors it will give out next. */
static __thread bool fetched __attribute__((tls_model("initial-exec")));

HM_EXPORT void hm_tf_get_next(uint64_t took_us) __asm__(HM_GET_NEXT);
HM_EXPORT void hm_tf_set_output(void *context, int index, const uint8_t *tensor) __asm__(HM_SET_OUTPUT);
HM_EXPORT const void *hm_tf_input(const void *context, int index) __asm__(HM_INPUT);

/* Where the counts are. */
HM_EXPORT const struct hm_cycles *hindmost_tensorflow(void) { return &hm_cycles; }

/* metrics::RecordTFDataGetNextDuration: a step has its batch, and waited so long for it. */
void hm_tf_get_next(uint64_t took_us) {
    HM_BEHIND(void, HM_GET_NEXT, uint64_t)
    __atomic_fetch_add(&hm_cycles.fetching_us, took_us, __ATOMIC_RELAXED);
    __atomic_fetch_add(&hm_cycles.fetched, 1, __ATOMIC_RELEASE);
    fetched = true;
    if (real)
        real(took_us);
}

static HM_COLD void count_samples(const void *caller, const uint8_t *tensor) {
    static int64_t (*dim_size)(const void *, int);
    if (!dim_size)
        dim_size = (int64_t(*)(const void *, int))behind(caller, HM_DIM_SIZE);
    if (!dim_size || tensor[HM_DIMENSIONS] == 0 || tensor[HM_DIMENSIONS] == HM_UNKNOWN_RANK)
        return;
    int64_t samples = dim_size(tensor, 0);
    if (samples > 0)
        __atomic_fetch_add(&hm_cycles.samples, (uint64_t)samples, __ATOMIC_RELAXED);
}

/* OpKernelContext::set_output: what comes first in a thread that has just taken a batch is that batch's first tensor. */
void hm_tf_set_output(void *context, int index, const uint8_t *tensor) {
    HM_BEHIND(void, HM_SET_OUTPUT, void *, int, const uint8_t *)
    if (__builtin_expect(fetched, 0)) {
        fetched = false;
        count_samples(__builtin_return_address(0), tensor);
    }
    real(context, index, tensor);
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
