/* Communicators that are made from others, windows, configurations and parameters: argv is as in program.c. */
#include "program.h"

static void sums_to(ncclComm_t of, int expected) {
  int sum = rank + 1;
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, of, NULL));
  EQUAL(sum, expected);
}

/* Tells another process something, by files beside the id's. */
static void tell(const char* base, const char* name, const void* bytes, size_t n) {
  char path[4096], part[4096];
  snprintf(path, sizeof path, "%s.%s", base, name);
  snprintf(part, sizeof part, "%s.%s.part", base, name);
  FILE* file = fopen(part, "wb");
  if (!file || fwrite(bytes, n, 1, file) != 1 || fclose(file) || rename(part, path)) FAIL("cannot write %s", path);
}

static void hear(const char* base, const char* name, void* bytes, size_t n) {
  char path[4096];
  snprintf(path, sizeof path, "%s.%s", base, name);
  FILE* file;
  while (!(file = fopen(path, "rb"))) usleep(2000);
  if (fread(bytes, n, 1, file) != 1) FAIL("cannot read %s", path);
  fclose(file);
  unlink(path);
}

/* Waits for all ranks without the communicator: what one rank does next to it ends nothing of another's. */
static void meet_by_files(const char* base) {
  char name[32];
  uint8_t byte = 0;
  for (int to = 0; to < ranks; to++) {
    snprintf(name, sizeof name, "from-%d-to-%d", rank, to);
    tell(base, name, &byte, 1);
  }
  for (int from = 0; from < ranks; from++) {
    snprintf(name, sizeof name, "from-%d-to-%d", from, rank);
    hear(base, name, &byte, 1);
  }
}

static void moves(void) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.userProfilerTag = 7;
  for (int configured = 0; configured < 2; configured++)
    for (size_t n = 0; n <= 30000; n = n * 10 + 3) {
      int16_t *out = malloc(n * ranks * 2 + 2), *in = malloc(n * ranks * 2 + 2);
      /* Two elements of 8 bits each: floats of 8 bits are moved. */
      for (int to = 0; to < ranks; to++)
        for (size_t i = 0; i < n; i++) out[to * n + i] = (int16_t)(rank * 1000 + to * 100 + i % 97);
#define VALUE(from, to, i) (int16_t)((from) * 1000 + (to) * 100 + (i) % 97)
      memset(in, 0xff, n * ranks * 2);
      if (configured) OK(ncclAlltoAllConfig(out, in, 2 * n, ncclFloat8e4m3, comm, NULL, &config));
      else OK(ncclAlltoAll(out, in, 2 * n, ncclFloat8e4m3, comm, NULL));
      for (int from = 0; from < ranks; from++)
        for (size_t i = 0; i < n; i++) EQUAL(in[from * n + i], VALUE(from, rank, i));
      for (int root = 0; root < ranks; root++) {
        memset(in, 0xff, n * ranks * 2);
        int16_t* to = rank == root ? in : NULL;
        if (configured) OK(ncclGatherConfig(out, to, 2 * n, ncclFloat8e5m2, root, comm, NULL, &config));
        else OK(ncclGather(out, to, 2 * n, ncclFloat8e5m2, root, comm, NULL));
        for (int from = 0; rank == root && from < ranks; from++)
          for (size_t i = 0; i < n; i++) EQUAL(in[from * n + i], VALUE(from, 0, i));
        memset(in, 0xff, n * ranks * 2);
        if (configured) OK(ncclScatterConfig(rank == root ? out : NULL, in, 2 * n, ncclUint8, root, comm, NULL, NULL));
        else OK(ncclScatter(rank == root ? out : NULL, in, 2 * n, ncclUint8, root, comm, NULL));
        for (size_t i = 0; i < n; i++) EQUAL(in[i], VALUE(root, rank, i));
        /* In place. */
        memcpy(in + rank * n, out, 2 * n);
        OK(ncclGather(in + rank * n, rank == root ? in : NULL, 2 * n, ncclUint8, root, comm, NULL));
        for (int from = 0; rank == root && from < ranks; from++)
          for (size_t i = 0; i < n; i++) EQUAL(in[from * n + i], VALUE(from, 0, i));
        memcpy(in, out, n * ranks * 2);
        OK(ncclScatter(in, rank == root ? in + rank * n : in, 2 * n, ncclUint8, root, comm, NULL));
        for (size_t i = 0; i < n; i++) EQUAL(in[(rank == root ? rank * n : 0) + i], VALUE(root, rank, i));
      }
      free(out), free(in);
    }
  int32_t one = 1, all[64] = {0};
  OK(ncclAllReduceConfig(&one, &one, 1, ncclInt32, ncclSum, comm, NULL, &config));
  EQUAL(one, ranks);
  OK(ncclReduceConfig(&one, &one, 1, ncclInt32, ncclMax, 0, comm, NULL, &config));
  OK(ncclBroadcastConfig(&one, &one, 1, ncclInt32, 0, comm, NULL, &config));
  OK(ncclAllGatherConfig(&one, all, 1, ncclInt32, comm, NULL, &config));
  for (int r = 0; r < ranks; r++) EQUAL(all[r], ranks);
  OK(ncclReduceScatterConfig(all, &one, 1, ncclInt32, ncclSum, comm, NULL, &config));
  EQUAL(one, ranks * ranks);
  /* A profiler's name for the same function. */
  OK(pncclAllReduce(&one, &one, 1, ncclInt32, ncclMin, comm, NULL));
  uint8_t byte = 0;
  REFUSED(ncclInvalidArgument, "float8e4m3", ncclAllReduce(&byte, &byte, 1, ncclFloat8e4m3, ncclSum, comm, NULL));
  config.algSelection = "ring";
  REFUSED(ncclInvalidArgument, "algSelection \"ring\"",
          ncclAllReduceConfig(&one, &one, 1, ncclInt32, ncclSum, comm, NULL, &config));
  config.forceAlgSelection = 0;
  OK(ncclAllReduceConfig(&one, &one, 1, ncclInt32, ncclMin, comm, NULL, &config));
  config.launchCompletionEvent = (cudaEvent_t)&one;
  REFUSED(ncclInvalidArgument, "CUDA event", ncclGatherConfig(&one, all, 1, ncclInt32, 0, comm, NULL, &config));
  config.launchCompletionEvent = NULL;
  config.minCTAs = 4, config.maxCTAs = 2;
  REFUSED(ncclInvalidArgument, "minCTAs is 4", ncclGatherConfig(&one, all, 1, ncclInt32, 0, comm, NULL, &config));
  config.magic = 0;
  REFUSED(ncclInvalidArgument, "NCCL_COLLCONFIG_INITIALIZER",
          ncclGatherConfig(&one, all, 1, ncclInt32, 0, comm, NULL, &config));
}

static void configurations(const char* base) {
  ncclUniqueId ids[2];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t other;
  if (rank == 0) {
    OK(ncclGetUniqueId(&ids[0]));
    OK(ncclGetUniqueId(&ids[1]));
    tell(base, "ids", ids, sizeof ids);
  } else {
    hear(base, "ids", ids, sizeof ids);
  }
  config.commName = "a name/with \x01 letters";
  config.collnetEnable = 0;
  config.blocking = 0;
  OK(ncclCommInitRankScalable(&other, ranks, rank, 2, ids, &config));
  sums_to(other, ranks * (ranks + 1) / 2);
  ncclComm_t part;
  config.commName = "part";
  OK(ncclCommSplit(other, 0, rank, &part, &config));
  sums_to(part, ranks * (ranks + 1) / 2);
  OK(ncclCommDestroy(part));
  OK(ncclCommDestroy(other));
  REFUSED(ncclInvalidArgument, "3 ids for 2 ranks", ncclCommInitRankScalable(&other, 2, rank, 3, ids, &config));
  REFUSED(ncclInvalidArgument, "0 ids", ncclCommInitRankScalable(&other, 2, rank, 0, ids, &config));
#define WRONG(member, value, words)                                                                      \
  do {                                                                                                   \
    ncclConfig_t wrong = NCCL_CONFIG_INITIALIZER;                                                        \
    wrong.member = value;                                                                                \
    REFUSED(ncclInvalidArgument, words, ncclCommInitRankConfig(&other, ranks, ids[0], rank, &wrong));    \
  } while (0)
  WRONG(blocking, 2, "blocking is 2");
  WRONG(cgaClusterSize, 9, "cgaClusterSize is 9");
  WRONG(minCTAs, 0, "minCTAs is 0");
  WRONG(maxCTAs, -3, "maxCTAs is -3");
  WRONG(splitShare, 5, "splitShare is 5");
  WRONG(collnetEnable, -1, "collnetEnable is -1");
  WRONG(CTAPolicy, 9, "CTAPolicy is 9");
  WRONG(shrinkShare, 2, "shrinkShare is 2");
  WRONG(nvlsCTAs, 0, "nvlsCTAs is 0");
  WRONG(size, 3, "NCCL_CONFIG_INITIALIZER");
  WRONG(size, 1 << 20, "NCCL_CONFIG_INITIALIZER");
  /* What a caller of 2.18 passes is shorter. */
  struct {
    size_t size;
    unsigned magic, version;
    int members[4];
    const char* net;
    int share;
  } old = {48, 0xcafebeef, 21805, {1, 1, 1, 1}, NULL, 0};
  OK(ncclCommSplit(comm, 0, 0, &part, (ncclConfig_t*)&old));
  sums_to(part, ranks * (ranks + 1) / 2);
  OK(ncclCommDestroy(part));
}

static void shrinks(void) {
  int out[] = {1}, last[] = {0, 2}, both[] = {1, 1}, size, place;
  ncclComm_t three = NULL, one = NULL, other = NULL;
  REFUSED(ncclInvalidArgument, "excluded twice", ncclCommShrink(comm, both, 2, &three, NULL, 0));
  REFUSED(ncclInvalidArgument, "and not all", ncclCommShrink(comm, both, 4, &three, NULL, 0));
  REFUSED(ncclInvalidArgument, "shrinkFlags 0x10", ncclCommShrink(comm, out, 1, &three, NULL, 16));
  both[1] = 9;
  REFUSED(ncclInvalidArgument, "excluded rank 9", ncclCommShrink(comm, both, 2, &three, NULL, 0));
  if (rank == 1) {
    REFUSED(ncclInvalidArgument, "rank 1 is excluded", ncclCommShrink(comm, out, 1, &three, NULL, 0));
    OK(ncclAllReduce(&out, &out, 1, ncclInt32, ncclSum, comm, NULL));
    for (int r = 0; r < ranks; r++)
      if (r != 1) OK(ncclSend(out, 1, ncclInt32, r, comm, NULL));
    /* The others abort what this waits for. */
    REFUSED(ncclRemoteError, "without ranks [1]", ncclAllReduce(&out, &out, 1, ncclInt32, ncclSum, comm, NULL));
    return;
  }
  OK(ncclCommShrink(comm, out, 1, &three, NULL, NCCL_SHRINK_DEFAULT));
  OK(ncclCommCount(three, &size));
  EQUAL(size, 3);
  OK(ncclCommUserRank(three, &place));
  EQUAL(place, rank ? rank - 1 : 0);
  sums_to(three, 1 + 3 + 4);
  /* The parent is as before; another child meets at the same place. */
  OK(ncclAllReduce(&place, &place, 1, ncclInt32, ncclSum, comm, NULL));
  /* Nobody aborts before rank 1 has told everybody that it has the sum. */
  OK(ncclRecv(&place, 1, ncclInt32, 1, comm, NULL));
  sums_to(three, 1 + 3 + 4);
  OK(ncclCommShrink(comm, out, 1, &other, NULL, NCCL_SHRINK_ABORT));
  sums_to(other, 1 + 3 + 4);
  if (rank == 2) {
    OK(ncclCommShrink(three, last, 2, &one, NULL, NCCL_SHRINK_DEFAULT));
    sums_to(one, 3);
    OK(ncclCommDestroy(one));
  }
  OK(ncclCommDestroy(other));
  OK(ncclCommDestroy(three));
}

/* Rank 0 dies, and the others go on. */
static void deaths(void) {
  int32_t value = 1;
  int gone[] = {0};
  ncclComm_t rest;
  ncclResult_t state;
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  /* Everybody has the sum before rank 0 is gone. */
  if (rank) OK(ncclSend(&value, 1, ncclInt32, 0, comm, NULL));
  for (int r = 1; rank == 0 && r < ranks; r++) OK(ncclRecv(&value, 1, ncclInt32, r, comm, NULL));
  if (rank == 0) _exit(0);
  REFUSED(ncclRemoteError, "rank 0", ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  OK(ncclCommGetAsyncError(comm, &state));
  EQUAL(state, ncclRemoteError);
  OK(ncclCommShrink(comm, gone, 1, &rest, NULL, NCCL_SHRINK_ABORT));
  OK(ncclCommAbort(comm));
  sums_to(rest, 2 + 3);
  OK(ncclCommDestroy(rest));
}

static void revocations(const char* base) {
  int32_t value = 1;
  int gone[] = {2};
  ncclComm_t part, two;
  ncclResult_t state;
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "NCCL_REVOKE_DEFAULT", ncclCommRevoke(comm, 4));
  /* A rank that revokes first ends the sums that others still wait for. */
  meet_by_files(base);
  OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSED(ncclInvalidUsage, "was revoked", ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  REFUSED(ncclInvalidUsage, "was revoked", ncclCommFinalize(comm));
  OK(ncclCommGetAsyncError(comm, &state));
  EQUAL(state, ncclSuccess);
  OK(ncclCommSplit(comm, rank ? 1 : NCCL_SPLIT_NOCOLOR, -rank, &part, NULL));
  if (rank) {
    sums_to(part, 5);
    OK(ncclCommDestroy(part));
  }
  if (rank < 2) {
    OK(ncclCommShrink(comm, gone, 1, &two, NULL, NCCL_SHRINK_DEFAULT));
    sums_to(two, 3);
    OK(ncclCommDestroy(two));
  }
  OK(ncclCommDestroy(comm));
}

/* All but the last are the old communicator. */
static void grows(const char* base) {
  ncclComm_t old, all;
  ncclUniqueId id;
  int last = ranks - 1, place;
  OK(ncclCommSplit(comm, rank == last ? NCCL_SPLIT_NOCOLOR : 0, rank, &old, NULL));
  if (rank == last) {
    REFUSED(ncclInvalidArgument, "a new rank needs uniqueId", ncclCommGrow(NULL, ranks, NULL, last, &all, NULL));
    hear(base, "grow", &id, sizeof id);
    OK(ncclCommGrow(NULL, ranks, &id, last, &all, NULL));
  } else {
    REFUSED(ncclInvalidArgument, "passes rank -1", ncclCommGrow(old, ranks, NULL, rank, &all, NULL));
    REFUSED(ncclInvalidArgument, "passes rank -1", ncclCommGrow(old, last, NULL, -1, &all, NULL));
    REFUSED(ncclInvalidUsage, "exactly one rank", ncclCommGrow(old, ranks, NULL, -1, &all, NULL));
    if (rank == 0) {
      OK(ncclCommGetUniqueId(old, &id));
      REFUSED(ncclInvalidUsage, "last id was not used", ncclCommGetUniqueId(old, &id));
      tell(base, "grow", &id, sizeof id);
    }
    OK(ncclCommGrow(old, ranks, rank ? NULL : &id, -1, &all, NULL));
    if (rank == 0) OK(ncclCommGetUniqueId(old, &id));
    OK(ncclCommDestroy(old));
  }
  OK(ncclCommUserRank(all, &place));
  EQUAL(place, rank);
  sums_to(all, ranks * (ranks + 1) / 2);
  OK(ncclCommDestroy(all));
}

static void windows(void) {
  enum { N = 1000, ROUNDS = 20 };
  int64_t* mine;
  ncclWindow_t window, second;
  void *start, *handle;
  OK(ncclMemAlloc((void**)&mine, sizeof(int64_t) * N * ranks));
  if ((uintptr_t)mine % NCCL_WIN_REQUIRED_ALIGNMENT) FAIL("memory at %p", (void*)mine);
  OK(ncclCommRegister(comm, mine, 8, &handle));
  OK(ncclCommDeregister(comm, handle));
  REFUSED(ncclInvalidArgument, "not of a buffer", ncclCommDeregister(comm, handle));
  /* Two in one group keep their order. */
  OK(ncclGroupStart());
  OK(ncclCommWindowRegister(comm, mine, sizeof(int64_t) * N * ranks, &window, NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclCommWindowRegister(comm, mine, 8, &second, NCCL_WIN_DEFAULT));
  OK(ncclGroupEnd());
  OK(ncclWinGetUserPtr(comm, window, &start));
  if (start != mine) FAIL("a window at %p", start);
  int64_t out[N];
  int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < N; i++) out[i] = rank * 1000000 + round * 1000 + i;
    /* Everybody puts before anybody waits; what is put can be changed at once. */
    OK(ncclPutSignal(out, N, ncclInt64, right, window, sizeof(int64_t) * N * rank, 0, 0, 0, comm, NULL));
    memset(out, 0, sizeof out);
    OK(ncclSignal(right, 3, 1, 0, comm, NULL));
    ncclWaitSignalDesc_t both[2] = {{1, left, 3, 1}, {1, left, 0, 0}};
    if (round % 2) {
      OK(ncclWaitSignal(2, both, comm, NULL));
    } else {
      int one = 1;
      OK(ncclGroupStart());
      OK(ncclWaitSignal(2, both, comm, NULL));
      OK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, NULL));
      OK(ncclGroupEnd());
      EQUAL(one, ranks);
    }
    for (int i = 0; i < N; i++) EQUAL(mine[N * left + i], left * 1000000 + round * 1000 + i);
  }
  REFUSED(ncclInvalidArgument, "are not within",
          ncclPutSignal(out, N, ncclInt64, right, second, 0, 0, 0, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "are not within",
          ncclPutSignal(out, 1, ncclInt64, right, second, 1, 0, 0, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "peer", ncclSignal(ranks, 0, 0, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "flags", ncclSignal(0, 0, 0, 1, comm, NULL));
  ncclWaitSignalDesc_t own = {2, rank, 0, 0};
  REFUSED(ncclInvalidUsage, "signals of this rank", ncclWaitSignal(1, &own, comm, NULL));
  OK(ncclCommFinalize(comm));
  OK(ncclCommWindowDeregister(comm, window));
  OK(ncclCommWindowDeregister(comm, second));
  REFUSED(ncclInvalidArgument, "window", ncclWinGetUserPtr(comm, window, &start));
  REFUSED(ncclInvalidArgument, "flags 0x100", ncclCommWindowRegister(comm, mine, 8, &window, 256));
  OK(ncclMemFree(mine));
  REFUSED(ncclInvalidArgument, "does not come from ncclMemAlloc", ncclMemFree(mine));
  OK(ncclMemFree(NULL));
}

static void simulations(void) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int64_t values[2] = {rank, rank};
  double before = -1;
  for (size_t n = 1; n <= 1 << 20; n *= 32) {
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    OK(ncclAllReduce(values, values, n, ncclInt64, ncclSum, comm, NULL));
    OK(ncclGroupSimulateEnd(NULL));
    OK(ncclGroupSimulateEnd(&info));
    if (!(info.estimatedTime >= before) || info.estimatedTime <= 0)
      FAIL("%g us, %g before", info.estimatedTime, before);
    before = info.estimatedTime;
  }
  EQUAL(values[0], rank);
  OK(ncclGroupStart());
  OK(ncclAllReduce(values, values, 1 << 20, ncclInt64, ncclSum, comm, NULL));
  OK(ncclAllReduce(values, values, 1 << 20, ncclInt64, ncclSum, comm, NULL));
  OK(ncclAlltoAll(values, values, 1, ncclInt64, comm, NULL));
  OK(ncclGroupSimulateEnd(&info));
  if (!(info.estimatedTime > 1.9 * before)) FAIL("%g us for two of %g", info.estimatedTime, before);
  info.magic = 1;
  OK(ncclGroupStart());
  REFUSED(ncclInvalidArgument, "simInfo", ncclGroupSimulateEnd(&info));
  REFUSED(ncclInvalidUsage, "without ncclGroupStart", ncclGroupSimulateEnd(&info));
  OK(ncclAllReduce(values, values, 1, ncclInt64, ncclSum, comm, NULL));
}

static void parameters(void) {
  ncclParamHandle_t handle;
  const char *text, **keys;
  int64_t wide;
  uint8_t narrow;
  char bytes[8];
  int len, found = 0;
  OK(ncclParamBind(&handle, "NETSUM_TIMEOUT_S"));
  OK(ncclParamGetStr(handle, &text));
  if (strcmp(text, "60")) FAIL("a time-out of %s", text);
  OK(ncclParamGetI64(handle, &wide));
  EQUAL(wide, 60);
  OK(ncclParamGetU8(handle, &narrow));
  EQUAL(narrow, 60);
  OK(ncclParamGet(handle, bytes, sizeof bytes, &len));
  EQUAL(len, 2);
  REFUSED(ncclInvalidArgument, "2 bytes", ncclParamGet(handle, bytes, 1, &len));
  OK(ncclParamGetParameter("NETSUM_TIMEOUT_S", &text, &len));
  EQUAL(len, 2);
  OK(ncclParamGetAllParameterKeys(&keys, &len));
  for (int i = 0; i < len; i++) found += !strcmp(keys[i], "NETSUM_MIN_BYTES") || !strcmp(keys[i], "NCCL_COMM_ID");
  EQUAL(found, 2);
  setenv("NETSUM_TENANT", "somebody", 1);
  OK(ncclParamBind(&handle, "NETSUM_TENANT"));
  REFUSED(ncclInvalidArgument, "is no number", ncclParamGetI64(handle, &wide));
  REFUSED(ncclInvalidArgument, "NCCL_ALGO is no parameter", ncclParamBind(&handle, "NCCL_ALGO"));
  REFUSED(ncclInvalidArgument, "not of ncclParamBind", ncclParamGetStr((ncclParamHandle_t)999, &text));
  ncclParamDumpAll();

  ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  OK(ncclSetEncryption(&encryption));
  encryption.mode = NCCL_ENCRYPTION_MODE_PSK;
  REFUSED(ncclInvalidUsage, "NETSUM_CREDENTIALS", ncclSetEncryption(&encryption));
  encryption.mode = 9;
  REFUSED(ncclInvalidArgument, "does not exist", ncclSetEncryption(&encryption));

  uint64_t memory;
  int32_t value = 1;
  OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &memory));
  EQUAL(memory, 0);
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  OK(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &memory));
  EQUAL(memory, 1);
  REFUSED(ncclInvalidUsage, "is suspended", ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "statistic 9", ncclCommMemStats(comm, 9, &memory));
  OK(ncclCommResume(comm));
  REFUSED(ncclInvalidUsage, "is not suspended", ncclCommResume(comm));
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
}

int main(int argc, char** argv) {
  if (argc != 5) FAIL("usage: changes RANK RANKS FILE WHAT");
  rank = atoi(argv[1]), ranks = atoi(argv[2]);
  const char* what = argv[4];
  connect_by_file(argv[3]);
  if (!strcmp(what, "moves")) moves();
  else if (!strcmp(what, "configurations")) configurations(argv[3]);
  else if (!strcmp(what, "shrinks")) shrinks();
  else if (!strcmp(what, "deaths")) { deaths(); return 0; }
  else if (!strcmp(what, "revocations")) { revocations(argv[3]); return 0; }
  else if (!strcmp(what, "grows")) grows(argv[3]);
  else if (!strcmp(what, "windows")) windows();
  else if (!strcmp(what, "simulations")) simulations();
  else if (!strcmp(what, "parameters")) parameters();
  else FAIL("%s is nothing that I can do", what);
  OK(ncclCommDestroy(comm));
  return 0;
}
