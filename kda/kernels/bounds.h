/* Handlers for -fsanitize=bounds,object-size, included before a CPU kernel that is to be checked.
 *
 * A compiler that instruments the kernel calls one of these where an index leaves a tile. The first such place is left
 * in the environment of the process, where kda/kernels/bounds.py finds it; the kernel runs on. No runtime library of
 * the sanitizer is needed, for nothing else of it is called. The structures are those of its interface.
 */
#ifndef KDA_BOUNDS_H
#define KDA_BOUNDS_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct kda_place { const char *file; uint32_t line, column; };
struct kda_type { uint16_t kind, info; char name[1]; };
struct kda_index { struct kda_place place; const struct kda_type *array, *index; };
struct kda_access { struct kda_place place; const struct kda_type *type; unsigned char log_alignment, kind; };

static void kda_out_of_bounds(const char *what, long at) {
  char text[256];
  snprintf(text, sizeof text, "%s %ld", what, at);
  setenv("KDA_OUT_OF_BOUNDS", text, 0);
}

#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) void __ubsan_handle_out_of_bounds(void *data, void *index) {
  kda_out_of_bounds(((struct kda_index *)data)->array->name, (long)(intptr_t)index);
}
__attribute__((weak)) void __ubsan_handle_type_mismatch_v1(void *data, void *pointer) {
  if (pointer) kda_out_of_bounds(((struct kda_access *)data)->type->name, -1);
}
#ifdef __cplusplus
}
#endif
#endif
