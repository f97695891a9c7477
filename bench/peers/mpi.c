/* One rank of an MPI library: the one driver of all benchmarks that compare netsum with an MPI.
 *
 *     mpi                             serves `netsum bench`: python/netsum/bench/ranks.py says what it reads and
 *                                     answers, and what buffers hold
 *     mpi sums BLOCKS SECONDS SIZE…   allreduces of float32 in place, for `make bench NAME=host_allreduce`
 *     mpi messages SECONDS SIZE…      messages between two ranks, for `make bench NAME=host_messages`
 *
 * The last two print a line per size: bytes, then seconds per call. Whoever needs the program compiles it. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PERIOD = 840, LINE = 256, TAG = 7, TOGETHER = 8 << 20, WINDOW = 64 };

static int rank, size;

typedef struct {
    const char *name;
    MPI_Datatype type;
    int width;
} Type;

static const char *const TYPES[] = {"float32", "float64", "int8", "uint8", "int16", "int32", "int64"};

static Type type_of(const char *name) {
    const MPI_Datatype types[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT8_T, MPI_UINT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T};
    const int widths[] = {4, 8, 1, 1, 2, 4, 8};
    for (int i = 0; i < 7; i++)
        if (!strcmp(name, TYPES[i]))
            return (Type){TYPES[i], types[i], widths[i]};
    return (Type){NULL, MPI_DATATYPE_NULL, 0};
}

static MPI_Op op_of(const char *name) {
    return !strcmp(name, "sum") ? MPI_SUM : !strcmp(name, "min") ? MPI_MIN : !strcmp(name, "max") ? MPI_MAX :
        !strcmp(name, "product") ? MPI_PROD : MPI_OP_NULL;
}

static void put(char *at, const Type *type, long value) {
    float f = (float)value;
    double d = (double)value;
    if (type->type == MPI_FLOAT)
        memcpy(at, &f, 4);
    else if (type->type == MPI_DOUBLE)
        memcpy(at, &d, 8);
    else
        memcpy(at, &value, (size_t)type->width); /* little-endian, and narrow sums wrap */
}

static long number(int product, long place, int of) {
    return product ? (place % size == of ? 2 : 1) : (5 * place + 3 * of) % 4;
}

/* What rank `of` contributes to element `at`. */
static long given(int product, long at, int of) {
    return number(product, at % PERIOD, of);
}

static long combined(const char *op, long at) {
    long result = given(!strcmp(op, "product"), at, 0);
    for (int of = 1; of < size; of++) {
        long next = given(!strcmp(op, "product"), at, of);
        if (!strcmp(op, "sum"))
            result += next;
        else if (!strcmp(op, "product"))
            result *= next;
        else if (!strcmp(op, "min") ? next < result : next > result)
            result = next;
    }
    return result;
}

/* Messages in a row that one call stands for; as in cases.py. */
static int messages(const char *operation, long bytes) {
    long many = TOGETHER / (bytes ? bytes : 1);
    if (strcmp(operation, "latency") && strcmp(operation, "bandwidth"))
        return 1;
    return many < 2 ? 2 : many > 64 ? 64 : (int)many / 2 * 2;
}

/* As `point` in ranks.py. */
static void point(const char *operation, char *source, char *target, long bytes, int elements, MPI_Datatype type) {
    int count = messages(operation, bytes), to = 1 - rank;
    MPI_Comm world = MPI_COMM_WORLD;
    MPI_Request open[64];
    if (rank > 1)
        return;
    if (!strcmp(operation, "latency")) {
        for (int i = 0; i < count / 2; i++) {
            if (!rank)
                MPI_Send(source, elements, type, to, TAG + 2, world);
            MPI_Recv(target, elements, type, to, TAG + 2, world, MPI_STATUS_IGNORE);
            if (rank)
                MPI_Send(source, elements, type, to, TAG + 2, world);
        }
        return;
    }
    for (int i = 0; i < count; i++)
        if (rank)
            MPI_Irecv(target, elements, type, to, TAG + 2, world, &open[i]);
        else
            MPI_Isend(source, elements, type, to, TAG + 2, world, &open[i]);
    MPI_Waitall(count, open, MPI_STATUSES_IGNORE);
    if (rank)
        MPI_Send(source, 1, type, to, TAG + 2, world);
    else
        MPI_Recv(target, 1, type, to, TAG + 2, world, MPI_STATUS_IGNORE);
}

static void run(const char *operation, char *source, char *target, long bytes, const Type *type, MPI_Op op) {
    long part = bytes / size;
    int elements = (int)(bytes / type->width), share = (int)(part / type->width);
    MPI_Comm world = MPI_COMM_WORLD;
    if (!strcmp(operation, "allreduce"))
        MPI_Allreduce(MPI_IN_PLACE, source, elements, type->type, op, world);
    else if (!strcmp(operation, "reduce"))
        MPI_Reduce(rank ? source : MPI_IN_PLACE, source, elements, type->type, op, 0, world);
    else if (!strcmp(operation, "broadcast"))
        MPI_Bcast(source, elements, type->type, 0, world);
    else if (!strcmp(operation, "allgather"))
        MPI_Allgather(source, share, type->type, target, share, type->type, world);
    else if (!strcmp(operation, "gather"))
        MPI_Gather(source, share, type->type, target, share, type->type, 0, world);
    else if (!strcmp(operation, "scatter"))
        MPI_Scatter(source, share, type->type, target, share, type->type, 0, world);
    else if (!strcmp(operation, "reduce_scatter"))
        MPI_Reduce_scatter_block(source, target, share, type->type, op, world);
    else if (!strcmp(operation, "alltoall"))
        MPI_Alltoall(source, share, type->type, target, share, type->type, world);
    else if (!strcmp(operation, "sendrecv"))
        MPI_Sendrecv(source, elements, type->type, (rank + 1) % size, TAG + 1, target, elements, type->type,
                     (rank + size - 1) % size, TAG + 1, world, MPI_STATUS_IGNORE);
    else if (!strcmp(operation, "latency") || !strcmp(operation, "bandwidth"))
        point(operation, source, target, bytes, elements, type->type);
    else
        MPI_Barrier(world);
}

/* Elements of this rank's result that are not what they must be. */
static long wrong(const char *operation, const char *op, const char *target, long bytes, const Type *type) {
    long part = bytes / size, elements = bytes / type->width, share = part / type->width, count = 0;
    int parted = !strcmp(operation, "scatter") || !strcmp(operation, "reduce_scatter");
    int rooted = !strcmp(operation, "gather") || !strcmp(operation, "reduce");
    int pair = !strcmp(operation, "latency"), one_way = !strcmp(operation, "bandwidth");
    if (!strcmp(operation, "barrier") || (rooted && rank) || (pair && rank > 1) || (one_way && rank != 1))
        return 0;
    for (long i = 0; i < (parted ? share : elements); i++) {
        long value;
        char expected[8];
        if (!strcmp(operation, "allreduce") || !strcmp(operation, "reduce"))
            value = combined(op, i);
        else if (!strcmp(operation, "reduce_scatter"))
            value = combined(op, rank * share + i);
        else if (!strcmp(operation, "broadcast"))
            value = given(0, i, 0);
        else if (!strcmp(operation, "scatter"))
            value = given(0, rank * share + i, 0);
        else if (!strcmp(operation, "alltoall"))
            value = given(0, rank * share + i % share, (int)(i / share));
        else if (pair || one_way)
            value = given(0, i, 1 - rank);
        else if (!strcmp(operation, "sendrecv"))
            value = given(0, i, (rank + size - 1) % size);
        else
            value = given(0, i % share, (int)(i / share));
        put(expected, type, value);
        count += memcmp(target + i * type->width, expected, (size_t)type->width) != 0;
    }
    return count;
}

static void measure(char *line) {
    char operation[32], dtype[32], reduction[32];
    long bytes, warmup, iterations, check, bad = 0, all = 0;
    if (sscanf(line, "%31s %31s %31s %ld %ld %ld %ld", operation, dtype, reduction, &bytes, &warmup, &iterations,
               &check) != 7)
        MPI_Abort(MPI_COMM_WORLD, 2);
    Type type = type_of(strcmp(operation, "barrier") ? dtype : "int8");
    MPI_Op op = op_of(reduction);
    int combines = strstr(operation, "reduce") != NULL, product = combines && !strcmp(reduction, "product");
    if (!type.name || (combines && op == MPI_OP_NULL)) {
        if (!rank)
            printf("unsupported MPI has no %s of %s\n", reduction, dtype);
        fflush(stdout);
        return;
    }
    int whole_in = strcmp(operation, "allgather") && strcmp(operation, "gather");
    int parted_out = !strcmp(operation, "scatter") || !strcmp(operation, "reduce_scatter");
    long in = whole_in ? bytes : bytes / size, out = parted_out ? bytes / size : bytes;
    int in_place = !strcmp(operation, "allreduce") || !strcmp(operation, "reduce") || !strcmp(operation, "broadcast");
    char *source = calloc((size_t)in + 1, 1), *target = in_place ? source : calloc((size_t)out + 1, 1);
    double *times = calloc((size_t)iterations + 1, sizeof *times), *slowest = calloc((size_t)iterations + 1, sizeof *times);
    for (long i = 0; i < in / type.width; i++)
        put(source + i * type.width, &type, given(product, i, rank));
    if (!in_place)
        memset(target, 0, (size_t)out);
    if (check) {
        run(operation, source, target, bytes, &type, op);
        bad = wrong(operation, reduction, target, bytes, &type);
    }
    if (in_place)
        memset(source, 0, (size_t)in);
    for (long i = 0; i < warmup; i++)
        run(operation, source, target, bytes, &type, op);
    for (long i = 0; i < iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        run(operation, source, target, bytes, &type, op);
        times[i] = (MPI_Wtime() - start) / messages(operation, bytes);
    }
    MPI_Reduce(times, slowest, (int)iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&bad, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) {
        printf("%ld", all);
        for (long i = 0; i < iterations; i++)
            printf(" %.9f", slowest[i]);
        printf("\n");
        fflush(stdout);
    }
    if (!in_place)
        free(target);
    free(source);
    free(times);
    free(slowest);
}

/* Rank 0's next line at all ranks; 0 at its end. Others sleep between looks: MPI would spin beside whoever measures. */
static int next(char *line) {
    if (rank == 0) {
        int more = fgets(line, LINE, stdin) != NULL;
        if (!more)
            line[0] = 0;
        for (int to = 1; to < size; to++)
            MPI_Send(line, LINE, MPI_CHAR, to, TAG, MPI_COMM_WORLD);
        return more;
    }
    for (int there = 0; !there;) {
        MPI_Iprobe(0, TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
        if (!there)
            usleep(1000);
    }
    MPI_Recv(line, LINE, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return line[0] != 0;
}

static void serve(void) {
    char line[LINE];
    if (!rank) {
        printf("ready\n");
        fflush(stdout);
    }
    while (next(line))
        measure(line);
}

/* How many calls fit `seconds`, where one takes `once`. */
static long fitting(double seconds, double once, long least, long most) {
    double calls = seconds / once;
    return calls < (double)least ? least : calls > (double)most ? most : (long)calls;
}

/* Seconds per call of a block of sums in a row, of the slowest rank. */
static double block(float *data, long calls, int count) {
    double slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < calls; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double seconds = (MPI_Wtime() - start) / calls;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void check_sum(float *data, int count) {
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

static void sums(int blocks, double seconds, char **sizes) {
    for (; *sizes; sizes++) {
        int count = (int)(atol(*sizes) / 4);
        float *data = calloc((size_t)count + 1, 4);
        check_sum(data, count);
        long calls = fitting(seconds, block(data, 2, count), 3, 100000);
        if (!rank)
            printf("%s", *sizes);
        for (int i = 0; i < blocks; i++) {
            double each = block(data, calls, count);
            if (!rank)
                printf(" %.9g", each);
        }
        if (!rank) {
            printf("\n");
            fflush(stdout);
        }
        free(data);
    }
}

static void there_and_back(char *source, char *target, long count, int bytes) {
    for (long i = 0; i < count; i++) {
        if (!rank)
            MPI_Send(source, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(target, bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank)
            MPI_Send(source, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

/* A message each way at once, of which both ranks wait for the end. */
static void exchange(char *source, char *target, long count, int bytes) {
    for (long i = 0; i < count; i++)
        MPI_Sendrecv(source, bytes, MPI_BYTE, 1 - rank, TAG, target, bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
}

/* With up to WINDOW messages under way. */
static void one_way(char *source, char *target, long count, int bytes) {
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

typedef void Shape(char *source, char *target, long count, int bytes);

static double timed(Shape *shape, char *source, char *target, long count, int bytes) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    shape(source, target, count, bytes);
    double seconds = (MPI_Wtime() - start) / count;
    MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return seconds;
}

static void all_messages(double seconds, char **sizes) {
    Shape *shapes[] = {there_and_back, exchange, one_way};
    for (; *sizes; sizes++) {
        int bytes = atoi(*sizes);
        char *source = malloc((size_t)bytes), *target = calloc((size_t)bytes, 1);
        memset(source, 1, (size_t)bytes);
        if (!rank)
            printf("%d", bytes);
        for (int shape = 0; shape < 3; shape++) {
            double once = timed(shapes[shape], source, target, 10, bytes);
            long count = fitting(seconds, once, 10, 200000);
            /* A round trip is two messages. */
            double each = timed(shapes[shape], source, target, count, bytes) / (shape ? 1 : 2);
            if (!rank)
                printf(" %.9g", each);
        }
        if (!rank)
            printf("\n");
        if (target[bytes - 1] != 1 && rank) {
            fprintf(stderr, "%d bytes are wrong\n", bytes);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        free(source);
        free(target);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 4 && !strcmp(argv[1], "sums"))
        sums(atoi(argv[2]), atof(argv[3]), argv + 4);
    else if (argc > 3 && !strcmp(argv[1], "messages"))
        all_messages(atof(argv[2]), argv + 3);
    else
        serve();
    MPI_Finalize();
    return 0;
}
