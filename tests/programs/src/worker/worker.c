// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Interpreter of the calls of one process, over libframeshare: see mod.rs, which has the same rules.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <frameshare.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 4096
#define SMALLEST 4
#define WAIT INT64_C (300000000)
enum { NAMES = 8, WORDS = 8, CALLS = 4096, READS = 512, LARGEST = WIDTH * SMALLEST * 3 };

static atomic_bool has_failed;

static void report (const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start (arguments, format);
  vsnprintf (text, sizeof text, format, arguments);
  va_end (arguments);
  has_failed = true;
  fprintf (stderr, "REPORT %s\n", text);
}

/* The CUDA driver, whose declarations need its header. */
typedef int (*fn) (void);
static void *driver;
#define CALL(name, ...) ((int (*) (__VA_ARGS__)) symbol (#name))
static void *symbol (const char *name) {
  void *found = dlsym (driver, name);
  if (!found) {
    report ("%s is missing", name);
    _exit (2);
  }
  return found;
}

static bool check_code (const char *call, int code) {
  if (code)
    report ("%s returned %d", call, code);
  return code == 0;
}

static void push (void *context) {
  int mode = 2;
  CALL (cuThreadExchangeStreamCaptureMode, int *) (&mode);
  CALL (cuCtxSetCurrent, void *) (context);
}

static void *primary, *other;

typedef struct {
  char name[16], kind[16];
  void *handle, *context;
  frameshare_capture *capture;
  bool is_open;
} stream;

typedef struct {
  char name[16];
  frameshare_new_frame *frame;
  void *writer, *context;
  uint64_t number;
} slot;

typedef struct {
  char name[16];
  frameshare_frame *frame;
  uint64_t number;
  bool is_mortal, is_anywhere;
  void *on[16];
  int on_count;
} held;

typedef struct {
  char name[16];
  frameshare_reader *reader;
  bool is_complete, is_mortal;
} opened;

typedef struct {
  char what[64];
  void *event;
  uint8_t *bytes;
  size_t size;
  uint8_t byte;
} queued;

typedef struct {
  char *calls[CALLS];
  int count;
  stream streams[NAMES];
  slot slots[NAMES];
  held frames[NAMES];
  opened readers[NAMES];
  queued reads[READS];
  int read_count;
} thread;

static thread *threads[8];
static int thread_count;
static bool is_mortal[8], is_complete[8], has_captures, uses_legacy;
static char export_options[256];
static const char *folder;

static frameshare_exporter *exporter;
static pthread_rwlock_t exporter_lock = PTHREAD_RWLOCK_INITIALIZER;
static atomic_uint_fast64_t contents;
static pthread_mutex_t handed_lock = PTHREAD_MUTEX_INITIALIZER;
static held handed[64];
static int handed_count;

/* Statuses that a call may end with, as bits. */
#define MAY(name) (1u << FRAMESHARE_##name)

static bool outcome (const char *call, frameshare_status status, unsigned expected) {
  if (status == FRAMESHARE_OK)
    return true;
  const char *name = frameshare_status_name (status);
  if (!(expected & 1u << status) && !(has_captures && strstr (frameshare_last_error (), "captur")))
    report ("%s: %s: %s", call, name, frameshare_last_error ());
  return false;
}

/* Finds an object by its name, or room for it. */
#define FIND(type, array) \
  static type *find_##type (thread *t, const char *name) { \
    return &t->array[(unsigned) (name[1] - '0') % NAMES]; \
  }
FIND (stream, streams)
FIND (slot, slots)
FIND (held, frames)
FIND (opened, readers)

static stream *free_stream (thread *t, const char *name) {
  stream *s = find_stream (t, name);
  return s->is_open && !s->capture ? s : NULL;
}

static stream *any_stream (thread *t, const char *name) {
  stream *s = find_stream (t, name);
  return s->is_open ? s : NULL;
}

static bool reads_on (thread *t, void *handle) {
  for (int i = 0; i < NAMES; i++)
    for (int j = 0; t->frames[i].frame && j < t->frames[i].on_count; j++)
      if (t->frames[i].on[j] == handle)
        return true;
  pthread_mutex_lock (&handed_lock);
  bool found = false;
  for (int i = 0; i < handed_count; i++)
    for (int j = 0; j < handed[i].on_count; j++)
      found |= handed[i].on[j] == handle;
  pthread_mutex_unlock (&handed_lock);
  return found;
}

static bool writes_on (thread *t, void *handle) {
  for (int i = 0; i < NAMES; i++)
    if (t->slots[i].frame && t->slots[i].writer == handle)
      return true;
  return false;
}

/* A stream must live until the frames that it reads and the slots that it writes are given back. */
static bool destroy (thread *t, stream *s) {
  if (!s->is_open)
    return true;
  if (s->capture || reads_on (t, s->handle) || writes_on (t, s->handle))
    return false;
  if (s->handle)
    check_code ("cuStreamDestroy", CALL (cuStreamDestroy_v2, void *) (s->handle));
  s->is_open = false;
  return true;
}

static void create_stream (thread *t, const char *name, const char *kind) {
  stream *s = find_stream (t, name);
  /* The library refuses the per-thread default stream. */
  if (!destroy (t, s) || !strcmp (kind, "perthread"))
    return;
  snprintf (s->kind, sizeof s->kind, "%s", kind);
  s->handle = NULL;
  s->context = primary;
  s->is_open = true;
  if (strcmp (kind, "legacy")) {
    s->context = strcmp (kind, "other") ? primary : other;
    push (s->context);
    s->is_open =
      check_code ("cuStreamCreate", CALL (cuStreamCreate, void **, unsigned) (&s->handle, !!strcmp (kind, "blocking")));
    push (primary);
  }
}

static uint8_t byte_of (uint64_t number) {
  return 1 + number % 229;
}

static void fill (stream *s, uint64_t start, size_t size, uint8_t byte) {
  push (s->context);
  size_t half = size / 2;
  int first = CALL (cuMemsetD8Async, uint64_t, uint8_t, size_t, void *) (start, byte, half, s->handle);
  int second =
    CALL (cuMemsetD8Async, uint64_t, uint8_t, size_t, void *) (start + half, byte, size - half, s->handle);
  check_code ("cuMemsetD8Async", first ? first : second);
  push (primary);
}

static void check_bytes (const uint8_t *bytes, size_t size, uint8_t byte, const char *what) {
  for (size_t i = 0; i < size; i++)
    if (bytes[i] != byte) {
      report ("%s: byte %zu of %zu is %#04x instead of %#04x", what, i, size, bytes[i], byte);
      return;
    }
}

static void read_frame (thread *t, held *h, stream *s, const frameshare_plane *plane) {
  frameshare_frame_info info = FRAMESHARE_FRAME_INFO_INIT;
  frameshare_frame_get_info (h->frame, &info);
  char what[64];
  snprintf (what, sizeof what, "read of frame %llu with content %llu", (unsigned long long) info.sequence,
            (unsigned long long) h->number);
  if (plane->data) {
    check_bytes (plane->data, info.byte_count, byte_of (h->number), what);
    return;
  }
  /* A dead exporter may leave frames unwritten, and C has no call that tells. */
  if (h->is_mortal || t->read_count == READS)
    return;
  queued *q = &t->reads[t->read_count];
  void *bytes = NULL;
  push (s->context);
  if (check_code ("cuMemHostAlloc", CALL (cuMemHostAlloc, void **, size_t, unsigned) (&bytes, info.byte_count, 1)) &&
      check_code ("cuMemcpyDtoHAsync", CALL (cuMemcpyDtoHAsync_v2, void *, uint64_t, size_t, void *) (
                                         bytes, plane->device_pointer, info.byte_count, s->handle)) &&
      check_code ("cuEventCreate", CALL (cuEventCreate, void **, unsigned) (&q->event, 2)) &&
      check_code ("cuEventRecord", CALL (cuEventRecord, void *, void *) (q->event, s->handle))) {
    memcpy (q->what, what, sizeof what);
    q->bytes = bytes;
    q->size = info.byte_count;
    q->byte = byte_of (h->number);
    t->read_count++;
  }
  push (primary);
}

static void verify (thread *t) {
  for (int i = 0; i < t->read_count; i++) {
    queued *q = &t->reads[i];
    int code = 600;
    for (int ms = 0; ms < 5000 && code == 600; ms++) {
      code = CALL (cuEventQuery, void *) (q->event);
      if (code == 600)
        usleep (1000);
    }
    if (check_code ("cuEventQuery", code))
      check_bytes (q->bytes, q->size, q->byte, q->what);
  }
}

static void drop_slot (slot *s) {
  if (!s->frame)
    return;
  /* The library does not wait for work of another context. */
  if (s->context == other)
    check_code ("cuStreamSynchronize", CALL (cuStreamSynchronize, void *) (s->writer));
  frameshare_new_frame_discard (s->frame);
  memset (s, 0, sizeof *s);
}

static void write_slot (slot *f, stream *s) {
  if (f->number && f->writer != s->handle)
    return;
  frameshare_plane plane = FRAMESHARE_PLANE_INIT;
  if (!outcome ("plane", frameshare_new_frame_get_plane (f->frame, 0, &plane), 0))
    return;
  f->number = ++contents;
  f->writer = s->handle;
  f->context = s->context;
  fill (s, plane.device_pointer, plane.row_bytes * plane.height, byte_of (f->number));
}

static void publish (slot *f, bool somewhere) {
  frameshare_publish_options options = FRAMESHARE_PUBLISH_OPTIONS_INIT;
  options.pts_ns = f->number;
  options.timeout_ns = WAIT;
  frameshare_status status = somewhere && f->context != other
                               ? frameshare_exporter_publish (exporter, f->frame, &options, NULL)
                               : frameshare_exporter_publish_on (exporter, f->frame, f->writer, &options, NULL);
  if (status == FRAMESHARE_INVALID_ARGUMENT && strstr (frameshare_last_error (), "format"))
    status = FRAMESHARE_OK; /* Another thread has changed the format. */
  outcome ("publish", status, MAY (TIMEOUT) | MAY (EXPORTER_STOPPED));
  if (status == FRAMESHARE_TIMEOUT)
    drop_slot (f);
  memset (f, 0, sizeof *f);
}

static void open_reader (thread *t, char **w) {
  opened *r = find_opened (t, w[1]);
  frameshare_reader_close (r->reader);
  frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT;
  bool is_lossless = !strcmp (w[3], "lossless");
  /* Other kinds of memory are imported once in a process; frames of a failed import are lost. */
  r->is_complete = is_lossless && is_complete[atoi (w[2]) % 8];
  config.policy = is_lossless ? FRAMESHARE_POLICY_LOSSLESS : FRAMESHARE_POLICY_LATEST;
  config.max_held = atoi (w[4]);
  config.memory = strcmp (w[5], "host") ? FRAMESHARE_MEMORY_CUDA_OR_HOST : FRAMESHARE_MEMORY_HOST;
  config.reconnect = false;
  config.connection_timeout_ns = WAIT;
  char path[512];
  snprintf (path, sizeof path, "%s/%s.sock", folder, w[2]);
  r->is_mortal = is_mortal[atoi (w[2]) % 8];
  outcome ("open", frameshare_reader_open (path, &config, &r->reader), MAY (NOT_FOUND) | MAY (REFUSED));
}

static void release (held *h) {
  frameshare_frame_release (h->frame);
  memset (h, 0, sizeof *h);
}

static void take (held *h, opened *r) {
  if (!r->reader)
    return;
  frameshare_frame *frame;
  frameshare_status status = frameshare_reader_next (r->reader, 30000000, &frame);
  if (status == FRAMESHARE_TIMEOUT || status == FRAMESHARE_END_OF_STREAM)
    return;
  unsigned expected = r->is_mortal ? MAY (EXPORTER_STOPPED) | MAY (EVICTED) | MAY (EXPORTER_LOST)
                                      : MAY (EXPORTER_STOPPED) | MAY (EVICTED);
  if (!outcome ("take", status, expected)) {
    frameshare_reader_close (r->reader);
    memset (r, 0, sizeof *r);
    return;
  }
  release (h);
  frameshare_frame_info info = FRAMESHARE_FRAME_INFO_INIT;
  frameshare_frame_get_info (frame, &info);
  if (r->is_complete && info.lost_before)
    report ("take: a lossless reader lost %llu frames", (unsigned long long) info.lost_before);
  h->frame = frame;
  h->is_mortal = r->is_mortal;
  h->number = info.pts_ns;
}

static void add_use (held *h, void *handle) {
  for (int i = 0; i < h->on_count; i++)
    if (h->on[i] == handle)
      return;
  if (h->on_count < 16)
    h->on[h->on_count++] = handle;
}

static void exporter_call (thread *t, char **w) {
  slot *f = w[1] ? find_slot (t, w[1]) : NULL;
  stream *s = w[2] ? free_stream (t, w[2]) : NULL;
  if (!strcmp (w[0], "acquire")) {
    if (exporter && !f->frame)
      outcome ("acquire", frameshare_exporter_acquire (exporter, WAIT, &f->frame),
               MAY (NO_RESOURCES) | MAY (EXPORTER_STOPPED));
  } else if (!strcmp (w[0], "write")) {
    if (f->frame && s)
      write_slot (f, s);
  } else if (!strcmp (w[0], "publish")) {
    if (exporter && f->frame && f->number)
      publish (f, !strcmp (w[2], "somewhere"));
  } else if (!strcmp (w[0], "drop") || !strcmp (w[0], "discard")) {
    drop_slot (f);
  } else if (!strcmp (w[0], "format")) {
    frameshare_format format = FRAMESHARE_FORMAT_INIT;
    format.pixel_format = "GRAY8";
    format.width = WIDTH;
    format.height = SMALLEST * (1 + atoi (w[1]));
    if (exporter)
      outcome ("format", frameshare_exporter_set_format (exporter, &format), 0);
  } else if (!strcmp (w[0], "await")) {
    frameshare_exporter_stats stats = FRAMESHARE_EXPORTER_STATS_INIT;
    for (int ms = 0; exporter && ms < 200 && stats.readers < (unsigned) atoi (w[1]); ms++) {
      frameshare_exporter_get_stats (exporter, &stats);
      usleep (1000);
    }
  } else if (!strcmp (w[0], "drain")) {
    if (exporter)
      outcome ("drain", frameshare_exporter_drain (exporter, WAIT), MAY (TIMEOUT));
  } else if (!strcmp (w[0], "end")) {
    if (exporter)
      outcome ("end", frameshare_exporter_end_stream (exporter), 0);
  } else
    report ("unknown call %s", w[0]);
}

static void reader_call (thread *t, char **w) {
  held *h = find_held (t, w[1]);
  stream *s = w[2] ? any_stream (t, w[2]) : NULL;
  frameshare_plane plane = FRAMESHARE_PLANE_INIT;
  if (!strcmp (w[0], "take"))
    take (h, find_opened (t, w[2]));
  else if (!strcmp (w[0], "leave")) {
    opened *r = find_opened (t, w[1]);
    frameshare_reader_close (r->reader);
    memset (r, 0, sizeof *r);
  } else if (!strcmp (w[0], "fetch")) {
    pthread_mutex_lock (&handed_lock);
    if (!h->frame && handed_count)
      *h = handed[--handed_count];
    pthread_mutex_unlock (&handed_lock);
  } else if (!h->frame)
    return;
  else if (!strcmp (w[0], "drop"))
    release (h);
  else if (!strcmp (w[0], "hand")) {
    pthread_mutex_lock (&handed_lock);
    if (handed_count < 64) {
      handed[handed_count++] = *h;
      memset (h, 0, sizeof *h);
    }
    pthread_mutex_unlock (&handed_lock);
  } else if (!s || h->on_count == 16)
    return;
  else if (!strcmp (w[0], "read")) {
    if (outcome ("read", frameshare_frame_get_plane_on (h->frame, 0, s->handle, &plane), 0)) {
      add_use (h, s->handle);
      if (!s->capture)
        read_frame (t, h, s, &plane);
    }
  } else if (!strcmp (w[0], "plain")) {
    if (!s->capture && s->context == primary && outcome ("wait", frameshare_frame_wait_on (h->frame, s->handle), 0) &&
        outcome ("plane", frameshare_frame_get_plane (h->frame, 0, &plane), 0)) {
      h->is_anywhere = true;
      add_use (h, s->handle);
      read_frame (t, h, s, &plane);
    }
  } else if (!strcmp (w[0], "used")) {
    add_use (h, s->handle);
    outcome ("used", frameshare_frame_used_on_stream (h->frame, s->handle), 0);
  } else if (!strcmp (w[0], "done")) {
    if (!h->is_anywhere && outcome ("done", frameshare_frame_done_on (h->frame, s->handle), 0))
      for (int i = h->on_count; i-- > 0;)
        if (h->on[i] == s->handle)
          h->on[i] = h->on[--h->on_count];
  } else if (!strcmp (w[0], "release")) {
    bool is_alone = !h->is_anywhere && !s->capture;
    for (int i = 0; i < h->on_count; i++)
      is_alone &= h->on[i] == s->handle;
    if (is_alone) {
      outcome ("release", frameshare_frame_release_on (h->frame, s->handle), 0);
      memset (h, 0, sizeof *h);
    }
  } else
    report ("unknown call %s", w[0]);
}

static void end_capture (stream *s) {
  if (!s->is_open || !s->capture)
    return;
  void *graph = NULL;
  if (check_code ("end-capture", CALL (cuStreamEndCapture, void *, void **) (s->handle, &graph)))
    check_code ("cuGraphDestroy", CALL (cuGraphDestroy, void *) (graph));
  frameshare_capture_end (s->capture);
  s->capture = NULL;
}

static void begin_capture (stream *s, const char *mode) {
  bool may = !strcmp (s->kind, "nonblocking") || (!strcmp (s->kind, "blocking") && !uses_legacy);
  if (!s->is_open || s->capture || !may)
    return;
  int number = !strcmp (mode, "global") ? 0 : !strcmp (mode, "thread-local") ? 1 : 2;
  if (!outcome ("announce", frameshare_capture_announce (&s->capture), 0))
    return;
  if (!check_code ("capture", CALL (cuStreamBeginCapture_v2, void *, int) (s->handle, number))) {
    frameshare_capture_end (s->capture);
    s->capture = NULL;
  }
}

static bool is_one_of (const char *word, const char *words) {
  char padded[64];
  snprintf (padded, sizeof padded, " %s ", word);
  return strstr (words, padded) != NULL;
}

static void call (thread *t, char *text) {
  char *w[WORDS] = { NULL }, *rest = NULL;
  int n = 0;
  for (char *word = strtok_r (text, " ", &rest); word && n < WORDS; word = strtok_r (NULL, " ", &rest))
    w[n++] = word;
  if (!strcmp (w[0], "stream"))
    create_stream (t, w[1], w[2]);
  else if (!strcmp (w[0], "destroy"))
    destroy (t, find_stream (t, w[1]));
  else if (!strcmp (w[0], "sync")) {
    stream *s = free_stream (t, w[1]);
    if (s)
      check_code ("cuStreamSynchronize", CALL (cuStreamSynchronize, void *) (s->handle));
  } else if (!strcmp (w[0], "capture"))
    begin_capture (find_stream (t, w[1]), w[2]);
  else if (!strcmp (w[0], "end-capture"))
    end_capture (find_stream (t, w[1]));
  else if (!strcmp (w[0], "pause"))
    usleep (atoi (w[1]));
  else if (!strcmp (w[0], "die"))
    raise (SIGKILL);
  else if (!strcmp (w[0], "open"))
    open_reader (t, w);
  else if (!strcmp (w[0], "close")) {
    pthread_rwlock_wrlock (&exporter_lock);
    frameshare_exporter *last = exporter;
    exporter = NULL;
    frameshare_exporter_close (last);
    pthread_rwlock_unlock (&exporter_lock);
  } else if (is_one_of (w[0], " acquire write publish discard format await drain end ") ||
             (!strcmp (w[0], "drop") && w[1][0] == 'f')) {
    pthread_rwlock_rdlock (&exporter_lock);
    exporter_call (t, w);
    pthread_rwlock_unlock (&exporter_lock);
  } else
    reader_call (t, w);
}

static void *run (void *data) {
  thread *t = data;
  push (primary);
  for (int i = 0; i < t->count; i++)
    call (t, t->calls[i]);
  for (int i = 0; i < NAMES; i++)
    end_capture (&t->streams[i]);
  for (int i = 0; i < NAMES; i++)
    drop_slot (&t->slots[i]);
  verify (t);
  for (int i = 0; i < NAMES; i++)
    release (&t->frames[i]);
  for (int i = 0; i < NAMES; i++)
    frameshare_reader_close (t->readers[i].reader);
  return NULL;
}

static void parse (const char *file, int index) {
  FILE *input = fopen (file, "r");
  char line[256];
  int process = -1;
  while (input && fgets (line, sizeof line, input)) {
    char *text = line + strspn (line, " ");
    text[strcspn (text, "\n")] = 0;
    if (!strncmp (text, "process ", 8))
      process++;
    if (!strncmp (text, "export ", 7) && process >= 0)
      is_complete[process % 8] = strstr (text, "memory=auto") != NULL;
    if (!strcmp (text, "die") && process >= 0)
      is_mortal[process % 8] = true;
    if (process != index || !*text || !strncmp (text, "process ", 8))
      continue;
    if (!strncmp (text, "export ", 7))
      snprintf (export_options, sizeof export_options, "%s", text);
    else if (!strcmp (text, "thread"))
      threads[thread_count++] = calloc (1, sizeof (thread));
    else {
      has_captures |= !strncmp (text, "capture ", 8);
      uses_legacy |= strstr (text, " legacy") != NULL;
      thread *t = threads[thread_count - 1];
      t->calls[t->count++] = strdup (text);
    }
  }
}

static void meet (const char *what) {
  char line[64];
  puts (what);
  fflush (stdout);
  if (!fgets (line, sizeof line, stdin))
    _exit (2);
}

int main (int count, char **arguments) {
  if (count != 4)
    return 2;
  folder = arguments[3];
  parse (arguments[1], atoi (arguments[2]));
  driver = dlopen ("libcuda.so.1", RTLD_NOW);
  if (!driver)
    return 2;
  check_code ("cuInit", CALL (cuInit, unsigned) (0));
  check_code ("cuDevicePrimaryCtxRetain", CALL (cuDevicePrimaryCtxRetain, void **, int) (&primary, 0));
  check_code ("cuCtxCreate", CALL (cuCtxCreate_v2, void **, unsigned, int) (&other, 0, 0));
  push (primary);
  if (*export_options) {
    frameshare_exporter_config config = FRAMESHARE_EXPORTER_CONFIG_INIT;
    frameshare_format format = FRAMESHARE_FORMAT_INIT;
    format.pixel_format = "GRAY8";
    format.width = WIDTH;
    format.height = SMALLEST;
    config.memory = FRAMESHARE_MEMORY_CUDA;
    config.reader_timeout_ns = 200000000;
    config.slow_readers = strstr (export_options, "slow=queue")        ? FRAMESHARE_SLOW_READERS_QUEUE_THEN_WAIT
                          : strstr (export_options, "slow=disconnect") ? FRAMESHARE_SLOW_READERS_QUEUE_THEN_DISCONNECT
                                                                       : FRAMESHARE_SLOW_READERS_WAIT;
    const char *slots = strstr (export_options, "slots=");
    config.max_slots = slots ? atoi (slots + 6) : 16;
    char path[512];
    snprintf (path, sizeof path, "%s/%s.sock", folder, arguments[2]);
    outcome ("export", frameshare_exporter_create (path, &format, &config, &exporter), 0);
  }
  meet ("ready");
  pthread_t handles[8];
  for (int i = 0; i < thread_count; i++)
    pthread_create (&handles[i], NULL, run, threads[i]);
  for (int i = 0; i < thread_count; i++)
    pthread_join (handles[i], NULL);
  while (handed_count)
    release (&handed[--handed_count]);
  meet ("done");
  frameshare_exporter_close (exporter);
  outcome ("wait_for_gpu", frameshare_wait_for_gpu (INT64_C (5000000000)), 0);
  return has_failed;
}
