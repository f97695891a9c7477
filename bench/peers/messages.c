/* Times messages between two ranks, for `make bench NAME=host_messages`: seconds per message by size.
 *
 *     messages SECONDS SIZE…
 *
 * Half a round trip, a message each way at once (of which both ranks wait for the end), and one way with up to 64 under
 * way. A block is as many messages as fit SECONDS. Rank 0 prints a line per size: bytes, then three times. Any MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, TAG = 3 };
static char *source, *target;
static int rank;

static void there_and_back(long count, int bytes) {
    for (long i = 0; i < count; i++) {
        if (!rank)
            MPI_Send(source, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(target, bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank)
            MPI_Send(source, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

static void exchange(long count, int bytes) {
    for (long i = 0; i < count; i++)
        MPI_Sendrecv(source, bytes, MPI_BYTE, 1 - rank, TAG, target, bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
}

static void one_way(long count, int bytes) {
    MPI_Request open[WINDOW];
    char answer = 0;
    for (long i = 0; i < count; i += WINDOW) {
        int now = count - i < WINDOW ? (int)(count - i) : WINDOW;
        for (int each = 0; each < now; each++)
            if (rank)
                MPI_Irecv(target, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &open[each]);
            else
                MPI_Isend(source, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &open[each]);
        MPI_Waitall(now, open, MPI_STATUSES_IGNORE);
        if (rank)
            MPI_Send(&answer, 1, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        else
            MPI_Recv(&answer, 1, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static double timed(void (*shape)(long, int), long count, int bytes) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    shape(count, bytes);
    double seconds = (MPI_Wtime() - start) / count;
    MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return seconds;
}

int main(int argc, char **argv) {
    void (*shapes[])(long, int) = {there_and_back, exchange, one_way};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double seconds = atof(argv[1]);
    for (int i = 2; i < argc; i++) {
        int bytes = atoi(argv[i]);
        source = malloc(bytes), target = malloc(bytes);
        memset(source, 1, bytes), memset(target, 0, bytes);
        if (!rank)
            printf("%d", bytes);
        for (int shape = 0; shape < 3; shape++) {
            double once = timed(shapes[shape], 10, bytes);
            long count = (long)(seconds / once);
            count = count < 10 ? 10 : count > 200000 ? 200000 : count;
            /* A round trip is two messages. */
            double each = timed(shapes[shape], count, bytes) / (shape ? 1 : 2);
            if (!rank)
                printf(" %.9g", each);
        }
        if (!rank)
            printf("\n");
        if (target[bytes - 1] != 1 && rank) {
            fprintf(stderr, "%d bytes are wrong\n", bytes);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        free(source), free(target);
    }
    MPI_Finalize();
    return 0;
}
