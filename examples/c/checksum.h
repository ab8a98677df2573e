/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Checksum of a frame's image, which the programs print for comparison. */

#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_INIT UINT64_C (0xcbf29ce484222325)

/* FNV-1a of a row, without padding. */
static inline uint64_t
checksum_row (uint64_t sum, const uint8_t *row, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++)
    sum = (sum ^ row[i]) * UINT64_C (0x100000001b3);
  return sum;
}

#endif
