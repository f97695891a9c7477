/* Times allreduce of float32 sums in place, for `make bench NAME=host_allreduce`: seconds per call by size.
 *
 *     allreduce BLOCKS SECONDS SIZE…
 *
 * A block is as many calls in a row as fit SECONDS, at least 3; its time is that of the slowest rank. Rank 0 prints a
 * line per size: bytes, then the seconds per call of each block. Any MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *data;

static double block(long calls, int count) {
    double slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < calls; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double seconds = (MPI_Wtime() - start) / calls;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void check(int count, int rank, int size) {
    for (int i = 0; i < count; i++)
        data[i] = (float)(i % 1000 + rank);
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        if (data[i] != (float)(i % 1000 * size + size * (size - 1) / 2)) {
            fprintf(stderr, "element %d of %d is wrong\n", i, count);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    memset(data, 0, (size_t)count * 4);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int blocks = atoi(argv[1]);
    double seconds = atof(argv[2]);
    long most = 0;
    for (int i = 3; i < argc; i++)
        most = atol(argv[i]) > most ? atol(argv[i]) : most;
    data = malloc((size_t)most);
    memset(data, 0, (size_t)most);
    for (int i = 3; i < argc; i++) {
        int count = (int)(atol(argv[i]) / 4);
        check(count, rank, size);
        double once = block(2, count);
        long calls = (long)(seconds / once);
        calls = calls < 3 ? 3 : calls > 100000 ? 100000 : calls;
        if (rank == 0)
            printf("%s", argv[i]);
        for (int b = 0; b < blocks; b++) {
            double each = block(calls, count);
            if (rank == 0)
                printf(" %.9g", each);
        }
        if (rank == 0) {
            printf("\n");
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
