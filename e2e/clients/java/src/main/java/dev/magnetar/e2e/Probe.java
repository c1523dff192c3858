package dev.magnetar.e2e;
final class Probe {}
