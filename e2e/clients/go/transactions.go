// Transactions of the stock Go client: `client transactions work|flood OPTIONS.json`.
//
// `work`: each takes one input message and publishes its number to every output topic, until a file says to stop.
// `flood`: opens transactions until one is refused. What is written is told in e2e/transactions/checks.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const callTimeout = 90 * time.Second

// TransactionOptions is what the runner asks for.
type TransactionOptions struct {
	ServiceURL   string   `json:"service_url"`
	Input        string   `json:"input"`
	Subscription string   `json:"subscription"`
	Outputs      []string `json:"outputs"`
	Workers      int      `json:"workers"`
	Seed         int64    `json:"seed"`
	TimeoutMs    int      `json:"timeout_ms"`
	History      string   `json:"history"`
	StopFile     string   `json:"stop_file"`
	DrainFile    string   `json:"drain_file"`
	Most         int      `json:"most"`
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (options *TransactionOptions) begin(client pulsar.Client) (pulsar.Transaction, error) {
	return client.NewTransaction(time.Duration(options.TimeoutMs) * time.Millisecond)
}

// plan says what a transaction is to come to: most are committed, and all once the file says to drain.
func (options *TransactionOptions) plan(random *rand.Rand) string {
	drawn := random.Float64()
	switch {
	case exists(options.DrainFile) || drawn < 0.7:
		return "commit"
	case drawn < 0.93:
		return "abort"
	default:
		return "leave"
	}
}

type worker struct {
	options   *TransactionOptions
	client    pulsar.Client
	consumer  pulsar.Consumer
	producers []pulsar.Producer
	random    *rand.Rand
	history   *History
	numbers   *atomic.Int64
}

func newWorker(client pulsar.Client, options *TransactionOptions, history *History, numbers *atomic.Int64, index int) *worker {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: options.Input, SubscriptionName: options.Subscription, Type: pulsar.Shared, ReceiverQueueSize: 10,
		AckWithResponse: true, BackOffPolicyFunc: newSteady, NackRedeliveryDelay: time.Second,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	must(err)
	found := &worker{
		options: options, client: client, consumer: consumer, history: history, numbers: numbers,
		random: rand.New(rand.NewSource(options.Seed + int64(index))),
	}
	for _, topic := range options.Outputs {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: true, SendTimeout: -1, BackOffPolicyFunc: newSteady,
		})
		must(err)
		found.producers = append(found.producers, producer)
	}
	return found
}

func (worker *worker) run() {
	for !exists(worker.options.StopFile) {
		select {
		case message := <-worker.consumer.Chan():
			worker.oneTransaction(message)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (worker *worker) oneTransaction(input pulsar.ConsumerMessage) {
	number := strconv.FormatInt(worker.numbers.Add(1)-1, 10)
	fields := map[string]any{"number": json.Number(number), "input": json.Number(string(input.Payload()))}
	worker.history.write("began", map[string]any{"number": fields["number"], "input": fields["input"]})
	asked, err := worker.attempt(input, number, worker.options.plan(worker.random), fields)
	if err != nil {
		fields["error"] = err.Error()
		if asked == "nothing" {
			worker.consumer.Nack(input)
		}
	}
	fields["asked"] = asked
	worker.history.write("ended", fields)
}

// attempt gives what the coordinator was asked to come to, and the error of what failed.
func (worker *worker) attempt(
	input pulsar.ConsumerMessage, number string, plan string, fields map[string]any,
) (string, error) {
	transaction, err := worker.options.begin(worker.client)
	if err != nil {
		return "nothing", err
	}
	id := transaction.GetTxnID()
	fields["id"] = fmt.Sprintf("(%d,%d)", id.MostSigBits, id.LeastSigBits)
	if err = worker.takePart(transaction, input, number); err != nil {
		_ = transaction.Abort(context.Background())
		return "nothing", err
	}
	switch plan {
	case "commit":
		return "commit", transaction.Commit(context.Background())
	case "abort":
		return "abort", transaction.Abort(context.Background())
	}
	return "nothing", nil
}

// takePart publishes to every topic and acknowledges the input, all at once.
func (worker *worker) takePart(transaction pulsar.Transaction, input pulsar.ConsumerMessage, number string) error {
	limited, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	results := make(chan error, len(worker.producers)+1)
	for _, producer := range worker.producers {
		go func() {
			_, err := producer.Send(limited, &pulsar.ProducerMessage{
				Payload: []byte(number), Key: number, Transaction: transaction,
			})
			results <- err
		}()
	}
	go func() { results <- worker.consumer.AckWithTxn(input, transaction) }()
	var failure error
	for range cap(results) {
		if err := <-results; err != nil {
			failure = err
		}
	}
	return failure
}

func work(client pulsar.Client, options *TransactionOptions, history *History) {
	var numbers atomic.Int64
	var running sync.WaitGroup
	workers := make([]*worker, options.Workers)
	for index := range workers {
		workers[index] = newWorker(client, options, history, &numbers, index)
	}
	history.write("note", map[string]any{"text": "ready"})
	for _, worker := range workers {
		running.Add(1)
		go func() {
			defer running.Done()
			worker.run()
		}()
	}
	running.Wait()
}

func flood(client pulsar.Client, options *TransactionOptions, history *History) {
	opened, text := 0, ""
	began := time.Now()
	for text == "" && opened < options.Most {
		began = time.Now()
		if _, err := options.begin(client); err != nil {
			text = err.Error()
		} else {
			opened++
		}
	}
	history.write("flood", map[string]any{
		"opened": opened, "error": text, "took_ms": time.Since(began).Milliseconds(),
	})
}

func transactions(mode string, file string) {
	content, err := os.ReadFile(file)
	must(err)
	var options TransactionOptions
	must(json.Unmarshal(content, &options))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: options.ServiceURL, OperationTimeout: 20 * time.Second, Logger: quietLogger(), EnableTransaction: true,
	})
	must(err)
	history := newHistory(options.History)
	map[string]func(pulsar.Client, *TransactionOptions, *History){"work": work, "flood": flood}[mode](client, &options, history)
	history.close()
	client.Close()
}
