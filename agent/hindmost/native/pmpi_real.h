/* Macros that write wrappers. */
#ifndef HINDMOST_PMPI_REAL_H
#define HINDMOST_PMPI_REAL_H

#include "pmpi.h"

#define HM_JOIN(a, b) HM_JOIN_(a, b)
#define HM_JOIN_(a, b) a##b
#define HM_TEXT(a) HM_TEXT_(a)
#define HM_TEXT_(a) #a
#define HM_INNER(...) __VA_ARGS__

/* Declare `real`, the library's own function, found at the first call. */
#define HM_REAL(symbol, declaration)                                                                                   \
    static int(*real) declaration;                                                                                     \
    if (__builtin_expect(!real, 0)) {                                                                                  \
        real = (int(*) declaration)hm_library_symbol("P" HM_TEXT(symbol), __builtin_return_address(0));                \
        if (!real)                                                                                                     \
            return hm_err_other();                                                                                     \
    }

#endif
