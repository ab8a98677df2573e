/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Checks that end the program with the line and the last error. */

#ifndef CHECK_H
#define CHECK_H

#include <frameshare.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf (stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, frameshare_last_error ()); \
      exit (1); \
    } \
  } while (0)

/* The call returns this status, and nothing else. */
#define RETURNS(status, call) \
  do { \
    frameshare_status check_status = (call); \
    if (check_status != (status)) { \
      fprintf (stderr, "%s:%d: %s is \"%s\", not \"%s\"; last error: %s\n", __FILE__, __LINE__, #call, \
               frameshare_status_name (check_status), frameshare_status_name (status), frameshare_last_error ()); \
      exit (1); \
    } \
  } while (0)

#define OK(call) RETURNS (FRAMESHARE_OK, call)

/* The call is refused for an argument, and the message has this text. */
#define REFUSED(text, call) \
  do { \
    RETURNS (FRAMESHARE_INVALID_ARGUMENT, call); \
    if (strstr (frameshare_last_error (), (text)) == NULL) { \
      fprintf (stderr, "%s:%d: %s: the message is: %s\n", __FILE__, __LINE__, #call, frameshare_last_error ()); \
      exit (1); \
    } \
  } while (0)

#endif
