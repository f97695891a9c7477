/* A program for NCCL, on host memory, without a GPU. It forks its ranks; the parent makes the unique id.
 *
 *     cargo build --release -p netsum-capi
 *     cc examples/nccl_program.c -Icrates/capi/include -Ltarget/release -lnetsum_nccl -o nccl_program
 *     LD_LIBRARY_PATH=target/release ./nccl_program
 *
 * You see each rank print the sum of 1 + 2 + 3 + 4.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"

#define RANKS 4
#define COUNT 100000
#define CHECK(call)                                                           \
  do {                                                                        \
    ncclResult_t result = (call);                                             \
    if (result != ncclSuccess) {                                              \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));             \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

static void run(int rank, int id_from_rank0, int id_to_others) {
  ncclUniqueId id;
  if (rank == 0) {
    CHECK(ncclGetUniqueId(&id));
    for (int other = 1; other < RANKS; other++)
      if (write(id_to_others, &id, sizeof id) != (ssize_t)sizeof id) exit(1);
  } else if (read(id_from_rank0, &id, sizeof id) != (ssize_t)sizeof id) {
    exit(1);
  }
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, RANKS, id, rank));
  float* values = malloc(COUNT * sizeof *values);
  for (int i = 0; i < COUNT; i++) values[i] = (float)(rank + 1);
  CHECK(ncclAllReduce(values, values, COUNT, ncclFloat32, ncclSum, comm, NULL));
  printf("rank %d: %.1f\n", rank, values[COUNT - 1]);
  free(values);
  CHECK(ncclCommDestroy(comm));
}

int main(void) {
  int ends[2], failed = 0, status;
  if (pipe(ends)) return 1;
  for (int rank = 0; rank < RANKS; rank++)
    if (fork() == 0) {
      run(rank, ends[0], ends[1]);
      return 0;
    }
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
