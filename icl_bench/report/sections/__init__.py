"""The report's sections: charts and tables of one finding each."""
