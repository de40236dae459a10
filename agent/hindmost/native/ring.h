/* The ring that a probe writes and the agent reads: one file a producer, mapped by both, in shared memory.
 *
 * This file is the one definition of the layout; hindmost/ring.py is its twin and tests/probe/test_ring.py holds both to
 * the same truths. Everything is little-endian. Offsets in bytes:
 *
 *      0 ┌──────────────────────────────────────────────────────────────────────────────┐
 *        │ header: identity, clocks, capacity (struct hm_header)                        │
 *    512 │ head: events ever claimed (its own cache line)                               │
 *    640 │ names_count   704 │ comms_count                                              │
 *   1024 │ open table: 32 records, what has been entered and not left (word 0 = 0: free)│
 *   2304 │ partners: 32 x 56 bytes, with whom those wait that wait for several          │
 *   4096 ├──────────────────────────────────────────────────────────────────────────────┤
 *        │ names: 448 x char[64], append-only; an entry is valid once names_count > i;  │
 *        │ those that begin with \2 and two digits are pieces of a text, of no record   │
 *  32768 ├──────────────────────────────────────────────────────────────────────────────┤
 *        │ communicators: 512 x { u64 id, i32 rank, i32 size, char name[48] }           │
 *  65536 ├──────────────────────────────────────────────────────────────────────────────┤
 *        │ records: capacity x 40, capacity a power of two                              │
 *        └──────────────────────────────────────────────────────────────────────────────┘
 *
 * A record is five 64-bit words:
 *   word 0   stamp u32 (low half of index + 1) | kind u8 | flags u8 | name u16
 *   word 1   start, ns                  (CLOCK_MONOTONIC, or the GPU's globaltimer with HM_GPU_TIME)
 *   word 2   duration, ns
 *   word 3   seq u32 | peer u16 (0xFFFF none) | comm u16 (index into communicators, 0xFFFF none)
 *   word 4   value: bytes, samples, CPU ns … as the kind says
 *
 * In the open table word 3 has the peer that the operation waits for, a rank in its communicator; with HM_SEVERAL the
 * struct hm_partners of that slot lists them. With HM_POLLS word 2 counts failed tests: the caller waits as long as it
 * grows.
 *
 * Writing: claim index = head++ (atomic); word 0 = 0; words 1 to 4; word 0 last, with release order. Never waits.
 * Reading: copy [tail, head); read head again; what is older than head - capacity was overwritten and is lost, and
 * counted; a slot whose stamp is not index + 1 is not yet written: stop there and come back, and after one second
 * count it as lost.
 * The file is allocated in full (posix_fallocate) before it is mapped: a full /dev/shm is an error at creation, not a
 * SIGBUS in the training loop. magic is written last.
 */
#ifndef HINDMOST_RING_H
#define HINDMOST_RING_H

#include <stdint.h>

#define HM_MAGIC 0x31474E49524D48ULL /* "HMRING1" */
#define HM_LAYOUT 1
#define HM_RECORD_BYTES 40
#define HM_HEAD_OFFSET 512
#define HM_NAMES_COUNT_OFFSET 640
#define HM_COMMS_COUNT_OFFSET 704
#define HM_OPEN_OFFSET 1024
#define HM_OPEN_SLOTS 32
#define HM_PARTNERS_OFFSET 2304
#define HM_PARTNERS 22
#define HM_NAMES_OFFSET 4096
#define HM_NAMES 448
#define HM_NAME_BYTES 64
#define HM_COMMS_OFFSET 32768
#define HM_COMMS 512
#define HM_COMM_BYTES 64
#define HM_RECORDS_OFFSET 65536
#define HM_DEFAULT_CAPACITY 16384
#define HM_MPI_CAPACITY 65536 /* a burst of short collectives writes 100,000 records a second */
#define HM_NONE16 0xFFFF
#define HM_ANY16 0xFFFE /* a peer: whichever sends */

enum hm_producer { HM_PYTHON = 1, HM_MPI = 2, HM_NCCL = 3 };

enum hm_kind {         /* 0: a slot that was claimed for an event that could not be written */
    HM_STEP = 1,       /* name: train, eval; seq: step number; value: samples or tokens, 0 unknown */
    HM_PHASE = 2,      /* name: input, h2d, forward, backward, sync, optimizer, checkpoint, gc, gpu_forward … */
    HM_COLLECTIVE = 3, /* name: all_reduce …; comm, seq; peer: root; value: bytes */
    HM_P2P = 4,        /* name: send, recv, wait …; comm, peer; value: bytes; seq: of the collective a wait is for; of
                          no communicator: how many calls share this record, 0 where it is one call's */
    HM_SELF = 5,       /* a rank's self time since its last collective ended (start), without what it spent in other MPI
                          calls, written just before the collective that ends it; value: CPU ns, of MPI ranks
                          the process', of others the training thread's; seq: us its main thread waited for a CPU
                          (see flags) */
    HM_MARK = 6,       /* an instant; name says what */
    HM_IO = 7,         /* file I/O; name: file_read …; value: bytes */
    HM_LAUNCH = 8      /* the host's call that enqueued what the GPU_TIME record after it is of, whose name, comm, seq and
                          peer it has; another thread's records may come between the two */
};

enum hm_flag {
    HM_GPU_TIME = 1,     /* start is of the GPU's clock */
    HM_NONBLOCKING = 2,  /* duration brackets an enqueue or a request, not the waiting */
    HM_ERROR = 4,        /* the call returned an error */
    HM_CPU_KNOWN = 8,    /* HM_SELF: value holds */
    HM_RUNQUEUE_KNOWN = 16, /* HM_SELF: seq holds */
    HM_SENDS = 32,       /* open: waits until the peer receives, not until it sends */
    HM_SEVERAL = 64,     /* open: for several peers, see struct hm_partners */
    HM_POLLS = 128       /* open: not inside a call, but testing again and again */
};

enum hm_life { HM_LIVE = 0, HM_CLOSED = 1 };

struct hm_header {          /* offset */
    uint64_t magic;         /*   0 */
    uint32_t layout;        /*   8 */
    uint32_t record_bytes;  /*  12 */
    uint32_t capacity;      /*  16 */
    uint32_t producer;      /*  20 */
    uint32_t pid;           /*  24 */
    int32_t rank;           /*  28 */
    int32_t world_size;     /*  32 */
    int32_t local_rank;     /*  36 */
    uint64_t monotonic_ns;  /*  40: both clocks read together at creation; a time namespace shows here */
    uint64_t realtime_ns;   /*  48 */
    uint64_t start_ticks;   /*  56: field 22 of /proc/self/stat */
    uint64_t refused;       /*  64: events not written because a table was full */
    uint32_t life;          /*  72 */
    uint32_t reserved;      /*  76 */
    char job_id[64];        /*  80 */
    char gpu_uuid[64];      /* 144: empty until known */
    char framework[32];     /* 208 */
    char command[240];      /* 240 */
};

struct hm_record {
    uint32_t stamp;
    uint8_t kind;
    uint8_t flags;
    uint16_t name;
    uint64_t start_ns;
    uint64_t duration_ns;
    uint32_t seq;
    uint16_t peer;
    uint16_t comm;
    uint64_t value;
};

struct hm_comm {
    uint64_t id;
    int32_t rank;
    int32_t size;
    char name[48];
};

/* With whom an open operation waits; ranks in its communicator. */
struct hm_partners {
    uint16_t count;
    uint16_t more;           /* 1: others are left out */
    uint32_t sends, receives; /* bit i: until peers[i] receives, until it sends */
    uint16_t peers[HM_PARTNERS];
};

_Static_assert(sizeof(struct hm_record) == HM_RECORD_BYTES, "a record is five words");
_Static_assert(sizeof(struct hm_header) <= HM_HEAD_OFFSET, "the header ends before head");
_Static_assert(HM_OPEN_OFFSET + HM_OPEN_SLOTS * HM_RECORD_BYTES == HM_PARTNERS_OFFSET, "after the open table");
_Static_assert(HM_PARTNERS_OFFSET + HM_OPEN_SLOTS * sizeof(struct hm_partners) <= HM_NAMES_OFFSET, "before the names");
_Static_assert(sizeof(struct hm_comm) == HM_COMM_BYTES, "a communicator is 64 bytes");

#endif
