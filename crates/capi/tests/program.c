/* Every call of nccl.h between processes: argv is rank, ranks, file for the id, and what to do. Ends with 0, or says where
 * it is not content. */
#include "program.h"

/* Element i of rank r: small, so that sums and products are exact in every type. */
static double element(int r, size_t i) { return (double)((r + i) % 3 + 1); }

static double expected(ncclRedOp_t op, size_t i) {
  double sum = 0, product = 1, most = 0, least = 9;
  for (int r = 0; r < ranks; r++) {
    double x = element(r, i);
    sum += x, product *= x, most = fmax(most, x), least = fmin(least, x);
  }
  switch (op) {
    case ncclSum: return sum;
    case ncclProd: return product;
    case ncclMax: return most;
    case ncclMin: return least;
    default: return sum / ranks;
  }
}

/* Loops over one C type: fill, call, compare. */
#define TYPE_TEST(NAME, T, DATATYPE, INTEGER)                                                        \
  static void NAME(size_t n, int in_place) {                                                         \
    size_t all = n * ranks;                                                                          \
    T* send = malloc((all + 1) * sizeof(T));                                                         \
    T* recv = in_place ? send : malloc((all + 1) * sizeof(T));                                       \
    for (int op = ncclSum; op < ncclNumOps; op++) {                                                  \
      for (size_t i = 0; i < all; i++) send[i] = (T)element(rank, i);                                \
      OK(ncclAllReduce(send, recv, n, DATATYPE, op, comm, NULL));                                    \
      for (size_t i = 0; i < n; i++)                                                                 \
        EQUAL(recv[i], INTEGER ? trunc(expected(op, i)) : (T)expected(op, i));                       \
      for (int root = 0; root < ranks; root++) {                                                     \
        for (size_t i = 0; i < all; i++) send[i] = (T)element(rank, i);                              \
        OK(ncclReduce(send, rank == root ? recv : NULL, n, DATATYPE, op, root, comm, NULL));         \
        for (size_t i = 0; i < n; i++)                                                               \
          EQUAL(rank == root ? recv[i] : send[i],                                                    \
                rank != root ? (T)element(rank, i) : INTEGER ? trunc(expected(op, i)) : (T)expected(op, i)); \
      }                                                                                              \
      for (size_t i = 0; i < all; i++) send[i] = (T)element(rank, i);                                \
      T* mine = in_place ? send + rank * n : recv;                                                   \
      OK(ncclReduceScatter(send, mine, n, DATATYPE, op, comm, NULL));                                \
      for (size_t i = 0; i < n; i++)                                                                 \
        EQUAL(mine[i], INTEGER ? trunc(expected(op, rank * n + i)) : (T)expected(op, rank * n + i)); \
    }                                                                                                \
    T* part = in_place ? recv + rank * n : send;                                                     \
    for (size_t i = 0; i < n; i++) part[i] = (T)(rank + 1);                                          \
    OK(ncclAllGather(part, recv, n, DATATYPE, comm, NULL));                                          \
    for (size_t i = 0; i < all; i++) EQUAL(recv[i], n ? i / n + 1 : 0);                              \
    for (int root = 0; root < ranks; root++) {                                                       \
      for (size_t i = 0; i < n; i++) send[i] = (T)(rank + 1);                                        \
      OK(ncclBroadcast(send, recv, n, DATATYPE, root, comm, NULL));                                  \
      for (size_t i = 0; i < n; i++) EQUAL(recv[i], root + 1);                                       \
      for (size_t i = 0; i < n; i++) recv[i] = (T)(rank + 1);                                        \
      OK(ncclBcast(recv, n, DATATYPE, root, comm, NULL));                                            \
      for (size_t i = 0; i < n; i++) EQUAL(recv[i], root + 1);                                       \
    }                                                                                                \
    free(send);                                                                                      \
    if (!in_place) free(recv);                                                                       \
  }

TYPE_TEST(test_int8, int8_t, ncclInt8, 1)
TYPE_TEST(test_uint8, uint8_t, ncclUint8, 1)
TYPE_TEST(test_int32, int32_t, ncclInt32, 1)
TYPE_TEST(test_uint32, uint32_t, ncclUint32, 1)
TYPE_TEST(test_int64, int64_t, ncclInt64, 1)
TYPE_TEST(test_uint64, uint64_t, ncclUint64, 1)
TYPE_TEST(test_float, float, ncclFloat32, 0)
TYPE_TEST(test_double, double, ncclFloat64, 0)

static void collectives(void) {
  size_t sizes[] = {0, 1, 5, 1000, 70000};
  for (int in_place = 0; in_place < 2; in_place++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      size_t n = sizes[i];
      test_int32(n, in_place), test_float(n, in_place);
      if (n > 5000) continue;
      test_int8(n, in_place), test_uint8(n, in_place), test_uint32(n, in_place);
      test_int64(n, in_place), test_uint64(n, in_place), test_double(n, in_place);
    }
  /* 1.0 and 2.0 as float16 and bfloat16. */
  uint16_t half[2] = {0x3c00, 0x4000}, brain[2] = {0x3f80, 0x4000};
  OK(ncclAllReduce(half, half, 2, ncclFloat16, ncclMax, comm, NULL));
  OK(ncclAllReduce(brain, brain, 2, ncclBfloat16, ncclAvg, comm, NULL));
  EQUAL(half[1], 0x4000);
  EQUAL(brain[0], 0x3f80);
  /* Unsigned order beyond the largest signed number. */
  uint32_t large = rank ? 7 : 0xfffffff0u;
  OK(ncclAllReduce(&large, &large, 1, ncclUint32, ncclMax, comm, NULL));
  EQUAL(large, 0xfffffff0u);
  uint64_t average = UINT64_MAX / 8;
  OK(ncclAllReduce(&average, &average, 1, ncclUint64, ncclAvg, comm, NULL));
  EQUAL(average, UINT64_MAX / 8);
}

static void scaled_sums(void) {
  ncclRedOp_t op;
  float factor = (float)(rank + 1), values[3] = {1, 2, 3};
  OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
  OK(ncclAllReduce(values, values, 3, ncclFloat32, op, comm, NULL));
  for (int i = 0; i < 3; i++) EQUAL(values[i], (i + 1) * ranks * (ranks + 1) / 2);
  REFUSED(ncclInvalidArgument, "was made for datatype 7, not 8", ncclAllReduce(values, values, 1, ncclDouble, op, comm, NULL));
  OK(ncclRedOpDestroy(op, comm));
  REFUSED(ncclInvalidArgument, "does not exist", ncclAllReduce(values, values, 1, ncclFloat, op, comm, NULL));
}

/* Both ways at the same time, far more than fits between two processes: without groups this blocks for ever. */
static void groups(void) {
  size_t n = 1 << 20;
  int32_t *send = malloc(n * ranks * 4), *recv = malloc(n * ranks * 4), sum = rank + 1;
  for (size_t i = 0; i < n * ranks; i++) send[i] = rank * 100 + (int)(i / n);
  OK(ncclGroupStart());
  for (int peer = 0; peer < ranks; peer++) {
    OK(ncclGroupStart());
    OK(ncclSend(send + peer * n, n, ncclInt32, peer, comm, NULL));
    OK(ncclRecv(recv + peer * n, n, ncclInt32, peer, comm, NULL));
    OK(ncclGroupEnd());
  }
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, NULL));
  EQUAL(sum, rank + 1);
  OK(ncclGroupEnd());
  EQUAL(sum, ranks * (ranks + 1) / 2);
  for (size_t i = 0; i < n * ranks; i++) EQUAL(recv[i], (int)(i / n) * 100 + rank);
  /* A chain, without a group. */
  if (rank) OK(ncclRecv(&sum, 1, ncclInt32, rank - 1, comm, NULL));
  sum += 1;
  if (rank + 1 < ranks) OK(ncclSend(&sum, 1, ncclInt32, rank + 1, comm, NULL));
  EQUAL(sum, ranks * (ranks + 1) / 2 + rank + 1);
  REFUSED(ncclInvalidUsage, "ncclGroupEnd without", ncclGroupEnd());
  REFUSED(ncclInvalidUsage, "1 sends of a rank to itself, 0 receives", ncclSend(&sum, 1, ncclInt32, rank, comm, NULL));
  OK(ncclGroupStart());
  REFUSED(ncclInvalidArgument, "peer", ncclSend(&sum, 1, ncclInt32, ranks, comm, NULL));
  REFUSED(ncclInvalidArgument, "peer", ncclGroupEnd());
  free(send), free(recv);
}

static void splits(void) {
  ncclComm_t part;
  OK(ncclCommSplit(comm, rank % 2, -rank, &part, NULL));
  int size, place, sum = rank;
  OK(ncclCommCount(part, &size));
  OK(ncclCommUserRank(part, &place));
  EQUAL(size, (ranks + 1 - rank % 2) / 2);
  EQUAL(place, size - 1 - rank / 2);
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, part, NULL));
  int right = 0;
  for (int r = rank % 2; r < ranks; r += 2) right += r;
  EQUAL(sum, right);
  OK(ncclCommDestroy(part));
  OK(ncclCommSplit(comm, rank ? 5 : NCCL_SPLIT_NOCOLOR, 0, &part, NULL));
  if (rank == 0) {
    if (part) FAIL("a rank without a color has a communicator");
  } else {
    OK(ncclCommCount(part, &size));
    EQUAL(size, ranks - 1);
    OK(ncclCommFinalize(part));
    OK(ncclCommDestroy(part));
  }
}

static void errors(void) {
  int32_t value = 0;
  ncclResult_t state;
  REFUSED(ncclInvalidArgument, "sendbuff is NULL", ncclAllReduce(NULL, &value, 1, ncclInt32, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "recvbuff is NULL", ncclAllReduce(&value, NULL, 1, ncclInt32, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "datatype 99", ncclAllReduce(&value, &value, 1, 99, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "operation 77", ncclAllReduce(&value, &value, 1, ncclInt32, 77, comm, NULL));
  REFUSED(ncclInvalidArgument, "root -1", ncclBcast(&value, 1, ncclInt32, -1, comm, NULL));
  REFUSED(ncclInvalidArgument, "too many", ncclBcast(&value, SIZE_MAX / 2, ncclInt32, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "the communicator is NULL", ncclBcast(&value, 1, ncclInt32, 0, NULL, NULL));
  REFUSED(ncclInvalidArgument, "the communicator is NULL", ncclBcast(&value, 1, ncclInt32, 0, (ncclComm_t)&value, NULL));
  REFUSED(ncclInvalidArgument, "count is NULL", ncclCommCount(comm, NULL));
  ncclUniqueId id;
  memset(&id, 1, sizeof id);
  ncclComm_t other;
  REFUSED(ncclInvalidArgument, "unique id", ncclCommInitRank(&other, ranks, id, rank));
  OK(ncclGetUniqueId(&id));
  REFUSED(ncclInvalidArgument, "rank 5 of 5", ncclCommInitRank(&other, 5, id, 5));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  REFUSED(ncclInvalidArgument, "configuration", ncclCommInitRankConfig(&other, 1, id, 0, &config));
  OK(ncclCommInitRank(&other, 1, id, 0));
  OK(ncclBcast(&value, 1, ncclInt32, 0, other, NULL));
  OK(ncclCommDestroy(other));
  REFUSED(ncclInvalidArgument, "was destroyed", ncclCommDestroy(other));
  OK(ncclCommGetAsyncError(comm, &state));
  EQUAL(state, ncclSuccess);
  /* Ranks that call different things are told which. */
  int32_t values[2] = {0, 0};
  ncclResult_t result = ncclAllReduce(values, values, rank ? 2 : 1, ncclInt32, ncclSum, comm, NULL);
  if (result != ncclInvalidUsage) FAIL("a mismatch gave %d: %s", result, ncclGetLastError(comm));
  if (!strstr(ncclGetLastError(comm), "allreduce int32[")) FAIL("%s", ncclGetLastError(comm));
}

/* Rank 0 aborts while the others wait for it. */
static void aborts(void) {
  int32_t value = 1;
  ncclResult_t state;
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  if (rank == 0) {
    usleep(200000);
    OK(ncclCommAbort(comm));
    REFUSED(ncclInvalidArgument, "was destroyed", ncclCommCount(comm, &value));
    return;
  }
  REFUSED(ncclRemoteError, "rank 0", ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  OK(ncclCommGetAsyncError(comm, &state));
  EQUAL(state, ncclRemoteError);
  OK(ncclCommAbort(comm));
}

/* All ranks in one process: calls on several communicators need a group. */
static void one_process(void) {
  ncclComm_t all[4];
  int32_t values[4] = {1, 2, 3, 4}, device, sums[4];
  OK(ncclCommInitAll(all, 4, NULL));
  OK(ncclCommCuDevice(all[3], &device));
  EQUAL(device, 3);
  OK(ncclGroupStart());
  for (int i = 0; i < 4; i++) OK(ncclAllReduce(values + i, sums + i, 1, ncclInt32, ncclSum, all[i], NULL));
  OK(ncclGroupEnd());
  for (int i = 0; i < 4; i++) EQUAL(sums[i], 10);
  ncclComm_t parts[4];
  OK(ncclGroupStart());
  for (int i = 0; i < 4; i++) OK(ncclCommSplit(all[i], i / 2, 0, parts + i, NULL));
  OK(ncclGroupEnd());
  OK(ncclGroupStart());
  for (int i = 0; i < 4; i++) OK(ncclAllReduce(values + i, sums + i, 1, ncclInt32, ncclSum, parts[i], NULL));
  OK(ncclGroupEnd());
  EQUAL(sums[0], 3);
  EQUAL(sums[3], 7);
  for (int i = 0; i < 4; i++) OK(ncclCommDestroy(parts[i]));
  for (int i = 0; i < 4; i++) OK(ncclCommDestroy(all[i]));
}

/* Byte i of message k from rank r. */
static unsigned char byte_of(int r, int k, size_t i) { return (unsigned char)(r * 31 + k * 7 + i * 13 + i / 251); }

/* The shapes of OSU's point-to-point benchmarks, between ranks 0 and 1, with results checked: osu_latency (there and back),
 * osu_bw (a window one way, then an answer), osu_bibw (windows both ways at once), osu_mbw_mr (all pairs at once). */
static void messages(void) {
  enum { WINDOW = 16 };
  size_t sizes[] = {0, 1, 8, 1024, 65536, 1 << 20};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    size_t n = sizes[s];
    unsigned char *out = malloc(WINDOW * n + 1), *in = malloc(WINDOW * n + 1), answer = 0;
    for (int k = 0; k < WINDOW; k++)
      for (size_t i = 0; i < n; i++) out[k * n + i] = byte_of(rank, k, i);
    int peer = rank ^ 1, paired = peer < ranks;
    for (int turn = 0; turn < 3 && rank < 2; turn++) {
      if (rank == 0) OK(ncclSend(out, n, ncclUint8, 1, comm, NULL));
      OK(ncclRecv(in, n, ncclUint8, peer, comm, NULL));
      if (rank == 1) OK(ncclSend(out, n, ncclUint8, 0, comm, NULL));
      for (size_t i = 0; i < n; i++) EQUAL(in[i], byte_of(peer, 0, i));
    }
    if (rank < 2) {
      memset(in, 0, WINDOW * n);
      OK(ncclGroupStart());
      for (int k = 0; k < WINDOW; k++)
        OK(rank ? ncclRecv(in + k * n, n, ncclUint8, 0, comm, NULL) : ncclSend(out + k * n, n, ncclUint8, 1, comm, NULL));
      OK(ncclGroupEnd());
      OK(rank ? ncclSend(&answer, 1, ncclUint8, 0, comm, NULL) : ncclRecv(&answer, 1, ncclUint8, 1, comm, NULL));
      for (size_t i = 0; rank && i < WINDOW * n; i++) EQUAL(in[i], byte_of(0, (int)(i / n), i % n));
    }
    memset(in, 0, WINDOW * n);
    OK(ncclGroupStart());
    for (int k = 0; paired && k < WINDOW; k++) {
      OK(ncclRecv(in + k * n, n, ncclUint8, peer, comm, NULL));
      OK(ncclSend(out + k * n, n, ncclUint8, peer, comm, NULL));
    }
    OK(ncclGroupEnd());
    for (size_t i = 0; paired && i < WINDOW * n; i++) EQUAL(in[i], byte_of(peer, (int)(i / n), i % n));
    free(out), free(in);
  }
}

/* Collectives that NCCL leaves to sends and receives in a group, as OSU and mpi4py ask for them: all-to-all, also uneven,
 * gather and scatter, also uneven and with empty parts, a barrier, and a ring of sendrecv. */
static void exchanges(void) {
  for (size_t most = 0; most <= 20000; most = most * 10 + 2) {
    /* Rank a sends rank b (a + 2b) % 4 quarters of `most`. */
    size_t room = most * ranks;
    int32_t *out = malloc(room * 4 + 4), *in = malloc(room * 4 + 4);
#define COUNT(a, b) (most * (size_t)(((a) + 2 * (b)) % 4) / 4)
    for (int to = 0; to < ranks; to++)
      for (size_t i = 0; i < most; i++) out[to * most + i] = rank * 1000000 + to * 100000 + (int)i;
    memset(in, 0xff, room * 4);
    OK(ncclGroupStart());
    for (int peer = 0; peer < ranks; peer++) {
      OK(ncclSend(out + peer * most, COUNT(rank, peer), ncclInt32, peer, comm, NULL));
      OK(ncclRecv(in + peer * most, COUNT(peer, rank), ncclInt32, peer, comm, NULL));
    }
    OK(ncclGroupEnd());
    for (int peer = 0; peer < ranks; peer++)
      for (size_t i = 0; i < most; i++)
        EQUAL(in[peer * most + i], i < COUNT(peer, rank) ? peer * 1000000 + rank * 100000 + (int)i : -1);
    for (int root = 0; root < ranks; root++) {
      memset(in, 0xff, room * 4);
      OK(ncclGroupStart());
      OK(ncclSend(out, COUNT(rank, root), ncclInt32, root, comm, NULL));
      for (int peer = 0; rank == root && peer < ranks; peer++)
        OK(ncclRecv(in + peer * most, COUNT(peer, root), ncclInt32, peer, comm, NULL));
      OK(ncclGroupEnd());
      for (int peer = 0; rank == root && peer < ranks; peer++)
        for (size_t i = 0; i < COUNT(peer, root); i++) EQUAL(in[peer * most + i], peer * 1000000 + (int)i);
      OK(ncclGroupStart());
      for (int peer = 0; rank == root && peer < ranks; peer++)
        OK(ncclSend(out + peer * most, COUNT(root, peer), ncclInt32, peer, comm, NULL));
      OK(ncclRecv(in, COUNT(root, rank), ncclInt32, root, comm, NULL));
      OK(ncclGroupEnd());
      for (size_t i = 0; i < COUNT(root, rank); i++) EQUAL(in[i], root * 1000000 + rank * 100000 + (int)i);
    }
#undef COUNT
    OK(ncclGroupStart());
    OK(ncclSend(out, most, ncclInt32, (rank + 1) % ranks, comm, NULL));
    OK(ncclRecv(in, most, ncclInt32, (rank + ranks - 1) % ranks, comm, NULL));
    OK(ncclGroupEnd());
    for (size_t i = 0; i < most; i++) EQUAL(in[i], (rank + ranks - 1) % ranks * 1000000 + (int)i);
    free(out), free(in);
  }
  /* Nobody leaves a barrier before the last has come. */
  int32_t token = 1;
  int64_t came[64] = {0};
  for (int late = 0; late < ranks; late++) {
    struct timespec now;
    if (rank == late) usleep(50000);
    clock_gettime(CLOCK_MONOTONIC, &now);
    came[rank] = now.tv_sec * 1000000000ll + now.tv_nsec;
    OK(ncclAllReduce(&token, &token, 1, ncclInt32, ncclMax, comm, NULL));
    clock_gettime(CLOCK_MONOTONIC, &now);
    OK(ncclAllGather(came + rank, came, 1, ncclInt64, comm, NULL));
    for (int r = 0; r < ranks; r++)
      if (now.tv_sec * 1000000000ll + now.tv_nsec < came[r]) FAIL("left before rank %d had come", r);
  }
}

static uint16_t half_of(double x, int brain) {
  float single = (float)x;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  if (brain || x == 0) return (uint16_t)(bits >> 16);
  return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff));
}

/* The 16-bit floats with every operation, in place and not; small whole numbers and halves are exact in both. */
static void halves(void) {
  size_t sizes[] = {0, 1, 7, 1000, 40000};
  for (int brain = 0; brain < 2; brain++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (int op = ncclSum; op < ncclNumOps; op++) {
        size_t n = sizes[s];
        if (op == ncclAvg && ranks != 2 && ranks != 4) continue;
        uint16_t *send = malloc(n * ranks * 2 + 2), *recv = malloc(n * ranks * 2 + 2);
        ncclDataType_t type = brain ? ncclBfloat16 : ncclFloat16;
        for (int in_place = 0; in_place < 2; in_place++) {
          for (size_t i = 0; i < n * ranks; i++) send[i] = half_of(element(rank, i), brain);
          uint16_t* to = in_place ? send : recv;
          OK(ncclAllReduce(send, to, n, type, op, comm, NULL));
          for (size_t i = 0; i < n; i++) EQUAL(to[i], half_of(expected(op, i), brain));
          for (size_t i = 0; i < n * ranks; i++) send[i] = half_of(element(rank, i), brain);
          to = in_place ? send + rank * n : recv;
          OK(ncclReduceScatter(send, to, n, type, op, comm, NULL));
          for (size_t i = 0; i < n; i++) EQUAL(to[i], half_of(expected(op, rank * n + i), brain));
        }
        free(send), free(recv);
      }
}

/* Parts of the world at work at the same time, and the world between. */
static void parts(void) {
  ncclComm_t row, column, alone;
  OK(ncclCommSplit(comm, rank / 2, rank, &row, NULL));
  OK(ncclCommSplit(comm, rank % 2, rank, &column, NULL));
  OK(ncclCommSplit(comm, rank, 0, &alone, NULL));
  for (int turn = 0; turn < 20; turn++) {
    int32_t of_row = rank + turn, of_column = rank + turn, of_one = rank, of_all = 1;
    OK(ncclAllReduce(&of_row, &of_row, 1, ncclInt32, ncclSum, row, NULL));
    OK(ncclAllReduce(&of_all, &of_all, 1, ncclInt32, ncclSum, comm, NULL));
    OK(ncclAllReduce(&of_column, &of_column, 1, ncclInt32, ncclMax, column, NULL));
    OK(ncclAllReduce(&of_one, &of_one, 1, ncclInt32, ncclProd, alone, NULL));
    int first = rank / 2 * 2, last = first + 1 < ranks ? first + 1 : first, highest = rank % 2;
    while (highest + 2 < ranks) highest += 2;
    EQUAL(of_row, first + turn + (last > first ? last + turn : 0));
    EQUAL(of_column, highest + turn);
    EQUAL(of_one, rank);
    EQUAL(of_all, ranks);
  }
  OK(ncclCommDestroy(row));
  OK(ncclCommDestroy(alone));
  OK(ncclCommDestroy(column));
}

int main(int argc, char** argv) {
  if (argc != 5) FAIL("usage: program RANK RANKS FILE WHAT");
  rank = atoi(argv[1]), ranks = atoi(argv[2]);
  const char* what = argv[4];
  if (!strcmp(what, "one_process")) {
    one_process();
    return 0;
  }
  connect_by_file(argv[3]);
  if (!strcmp(what, "collectives")) collectives();
  else if (!strcmp(what, "scaled_sums")) scaled_sums();
  else if (!strcmp(what, "groups")) groups();
  else if (!strcmp(what, "splits")) splits();
  else if (!strcmp(what, "errors")) errors();
  else if (!strcmp(what, "messages")) messages();
  else if (!strcmp(what, "exchanges")) exchanges();
  else if (!strcmp(what, "halves")) halves();
  else if (!strcmp(what, "parts")) parts();
  else if (!strcmp(what, "aborts")) { aborts(); return 0; }
  else FAIL("%s is nothing that I can do", what);
  OK(ncclCommDestroy(comm));
  return 0;
}
