/* What the test programs share: checks, and the communicator of all processes. */
#ifndef PROGRAM_H_
#define PROGRAM_H_

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

static int rank, ranks;
static ncclComm_t comm;

#define FAIL(...)                                                       \
  do {                                                                  \
    fprintf(stderr, "rank %d, line %d: ", rank, __LINE__);              \
    fprintf(stderr, __VA_ARGS__);                                       \
    fprintf(stderr, "\n");                                              \
    exit(1);                                                            \
  } while (0)
#define OK(call)                                                                                              \
  do {                                                                                                        \
    ncclResult_t result_ = (call);                                                                            \
    if (result_ != ncclSuccess) FAIL("%s: %s: %s", #call, ncclGetErrorString(result_), ncclGetLastError(comm)); \
  } while (0)
#define REFUSED(expected, words, call)                                                             \
  do {                                                                                             \
    ncclResult_t result_ = (call);                                                                 \
    if (result_ != (expected)) FAIL("%s gave %d, not %d", #call, result_, expected);               \
    if (!strstr(ncclGetLastError(comm), words)) FAIL("%s: %s", #call, ncclGetLastError(comm));     \
  } while (0)
#define EQUAL(a, b)                                                     \
  do {                                                                  \
    double a_ = (double)(a), b_ = (double)(b);                          \
    if (a_ != b_) FAIL("%s is %.17g, not %.17g", #a, a_, b_);           \
  } while (0)

static void connect_by_file(const char* path) {
  ncclUniqueId id;
  char part[4096];
  snprintf(part, sizeof part, "%s.part", path);
  if (rank == 0) {
    OK(ncclGetUniqueId(&id));
    FILE* file = fopen(part, "wb");
    if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(part, path)) FAIL("cannot write %s", path);
  } else {
    FILE* file;
    while (!(file = fopen(path, "rb"))) usleep(2000);
    if (fread(&id, sizeof id, 1, file) != 1) FAIL("cannot read %s", path);
    fclose(file);
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  OK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
  int value;
  OK(ncclCommCount(comm, &value));
  EQUAL(value, ranks);
  OK(ncclCommUserRank(comm, &value));
  EQUAL(value, rank);
  OK(ncclCommCuDevice(comm, &value));
  EQUAL(value, 0);
  OK(ncclGetVersion(&value));
  EQUAL(value, NCCL_VERSION_CODE);
}

#endif
